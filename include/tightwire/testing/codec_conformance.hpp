#pragma once
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include <tightwire/codec/concept.hpp>
#include <tightwire/testing/codec_feedback_checks.hpp>
#include <tightwire/testing/codec_nonfinite_checks.hpp>
#include <tightwire/testing/codec_value_checks.hpp>
#include <tightwire/testing/codec_wire_checks.hpp>

// Everything the library relies on in a codec, as GoogleTest cases for any BlockCodec. To hold your own codec to it:
//
//   #include <tightwire/testing/codec_conformance.hpp>
//   template <>
//   struct tightwire::testing::Claims<MyCodec> : tightwire::testing::DefaultClaims { ... };   // optional
//   using MyCodecs = ::testing::Types<MyCodec>;
//   namespace tightwire::testing {
//   INSTANTIATE_TYPED_TEST_SUITE_P(Mine, CodecConformance, MyCodecs, CodecName);
//   }

namespace tightwire::testing {

template <class C>
class CodecConformance : public ::testing::Test {
 protected:
  const Subject subject_ = subject<C>();
};
TYPED_TEST_SUITE_P(CodecConformance);

// The wire.
TYPED_TEST_P(CodecConformance, WireSizeIsExact) { check_wire_size(this->subject_); }
TYPED_TEST_P(CodecConformance, BytesEqualTheReferenceAtEveryLevelAndSize) { check_encoded_bytes(this->subject_); }
TYPED_TEST_P(CodecConformance, EveryBlockWorksOrIsRefused) { check_blocks(this->subject_); }
TYPED_TEST_P(CodecConformance, BuffersMayBeUnaligned) { check_unaligned(this->subject_); }
TYPED_TEST_P(CodecConformance, AnyBytesDecode) { check_decode_is_total(this->subject_); }

// The values.
TYPED_TEST_P(CodecConformance, ErrorIsWithinTheClaims) { check_error(this->subject_); }
TYPED_TEST_P(CodecConformance, ZeroIsExact) { check_zero(this->subject_); }
TYPED_TEST_P(CodecConformance, EqualElementsAndSingleOutliers) { check_equal_and_outlier(this->subject_); }
TYPED_TEST_P(CodecConformance, EncodingTheDecodedGivesTheSameBytes) {
  if (!this->subject_.idempotent) GTEST_SKIP() << "not claimed";
  check_idempotent(this->subject_);
}
TYPED_TEST_P(CodecConformance, PowersOfTwoScaleExactly) {
  if (!this->subject_.scale_invariant) GTEST_SKIP() << "not claimed";
  check_scale_invariant(this->subject_);
}
TYPED_TEST_P(CodecConformance, OddSymmetry) {
  if (!this->subject_.odd_symmetric) GTEST_SKIP() << "not claimed";
  check_odd_symmetric(this->subject_);
}
TYPED_TEST_P(CodecConformance, TinyBlocksAndFlushToZero) { check_tiny_blocks(this->subject_); }
TYPED_TEST_P(CodecConformance, AnyValueUnderAnyScaleHasACode) { check_code_is_total<TypeParam>(); }

// Error feedback and the sum.
TYPED_TEST_P(CodecConformance, ResidualIsInputMinusDecoded) { check_residual(this->subject_); }
TYPED_TEST_P(CodecConformance, FeedbackChangesTheSecondStep) { check_two_steps(this->subject_); }
TYPED_TEST_P(CodecConformance, CombineEqualsTheReference) { check_combine(this->subject_); }
TYPED_TEST_P(CodecConformance, CombineInPlace) { check_combine_in_place(this->subject_); }
TYPED_TEST_P(CodecConformance, NothingIsLostOverManySteps) { check_conservation(this->subject_); }
TYPED_TEST_P(CodecConformance, HintsChangeNothing) { check_hints(this->subject_); }
TYPED_TEST_P(CodecConformance, MeansOfHalfPrecisionGradients) { check_half_precision_mean(this->subject_); }

// What is not finite.
TYPED_TEST_P(CodecConformance, NonFiniteInput) { check_nonfinite_encode(this->subject_); }
TYPED_TEST_P(CodecConformance, ScatteredNonFiniteInputIsCounted) { check_scattered_nonfinite(this->subject_); }
TYPED_TEST_P(CodecConformance, LargestValues) { check_largest(this->subject_); }
TYPED_TEST_P(CodecConformance, OutlierInABfloat16Buffer) { check_bf16_outlier(this->subject_); }
TYPED_TEST_P(CodecConformance, NonFiniteContributions) { check_nonfinite_combine(this->subject_); }
TYPED_TEST_P(CodecConformance, NonFiniteValuesThatMeet) { check_meeting_nonfinite(this->subject_); }
TYPED_TEST_P(CodecConformance, SumOutOfRange) { check_sum_overflow(this->subject_); }

REGISTER_TYPED_TEST_SUITE_P(CodecConformance, WireSizeIsExact, BytesEqualTheReferenceAtEveryLevelAndSize,
                            EveryBlockWorksOrIsRefused, BuffersMayBeUnaligned, AnyBytesDecode, ErrorIsWithinTheClaims,
                            ZeroIsExact, EqualElementsAndSingleOutliers, EncodingTheDecodedGivesTheSameBytes,
                            PowersOfTwoScaleExactly, OddSymmetry, TinyBlocksAndFlushToZero,
                            AnyValueUnderAnyScaleHasACode, ResidualIsInputMinusDecoded, FeedbackChangesTheSecondStep,
                            CombineEqualsTheReference, CombineInPlace, NothingIsLostOverManySteps, HintsChangeNothing,
                            MeansOfHalfPrecisionGradients, NonFiniteInput, ScatteredNonFiniteInputIsCounted,
                            LargestValues, OutlierInABfloat16Buffer, NonFiniteContributions, NonFiniteValuesThatMeet,
                            SumOutOfRange);

/// Names the instances by their codecs.
struct CodecName {
  template <class C>
  static std::string GetName(int) {
    std::string name;
    for (const char letter : std::string(C::name))
      name += std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
    return name;
  }
};

/// std::tuple<A, B> as ::testing::Types<A, B>.
template <class Tuple>
struct AsTestTypes;
template <class... C>
struct AsTestTypes<std::tuple<C...>> {
  using Type = ::testing::Types<C...>;
};

}  // namespace tightwire::testing
