#pragma once
#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <tightwire/codec/concept.hpp>
#include <tightwire/testing/codec_feedback_checks.hpp>
#include <tightwire/testing/codec_nonfinite_checks.hpp>
#include <tightwire/testing/codec_rounding_checks.hpp>
#include <tightwire/testing/codec_value_checks.hpp>
#include <tightwire/testing/codec_wire_checks.hpp>

// Everything the library relies on in a codec, as GoogleTest cases for any BlockCodec. To hold your own codec to it, in
// one file of a test program:
//
//   #include <tightwire/testing/codec_conformance.hpp>
//   template <>
//   struct tightwire::testing::Claims<MyCodec> : tightwire::testing::DefaultClaims { ... };   // optional
//   namespace tightwire::testing {
//   INSTANTIATE_TEST_SUITE_P(Mine, CodecConformance, ::testing::Values(subject<MyCodec>()), CodecName{});
//   }

namespace tightwire::testing {

class CodecConformance : public ::testing::TestWithParam<Subject> {};

// The wire.
TEST_P(CodecConformance, WireSizeIsExact) { check_wire_size(GetParam()); }
TEST_P(CodecConformance, BytesEqualTheReferenceAtEveryLevelAndSize) { check_encoded_bytes(GetParam()); }
TEST_P(CodecConformance, EveryBlockWorksOrIsRefused) { check_blocks(GetParam()); }
TEST_P(CodecConformance, BuffersMayBeUnaligned) { check_unaligned(GetParam()); }
TEST_P(CodecConformance, AnyBytesDecode) { check_decode_is_total(GetParam()); }

// The values.
TEST_P(CodecConformance, ErrorIsWithinTheClaims) { check_error(GetParam()); }
TEST_P(CodecConformance, ZeroIsExact) { check_zero(GetParam()); }
TEST_P(CodecConformance, EqualElementsAndSingleOutliers) { check_equal_and_outlier(GetParam()); }
TEST_P(CodecConformance, EncodingTheDecodedGivesTheSameBytes) {
  if (!GetParam().idempotent) GTEST_SKIP() << "not claimed";
  check_idempotent(GetParam());
}
TEST_P(CodecConformance, PowersOfTwoScaleExactly) {
  if (!GetParam().scale_invariant) GTEST_SKIP() << "not claimed";
  check_scale_invariant(GetParam());
}
TEST_P(CodecConformance, OddSymmetry) {
  if (!GetParam().odd_symmetric) GTEST_SKIP() << "not claimed";
  check_odd_symmetric(GetParam());
}
TEST_P(CodecConformance, TinyBlocksAndFlushToZero) { check_tiny_blocks(GetParam()); }
TEST_P(CodecConformance, FlushingSubnormalsEveryLevelGivesTheSame) { check_flushing_levels(GetParam()); }
TEST_P(CodecConformance, AnyValueUnderAnyScaleHasACode) { GetParam().check_code_is_total(); }

// Error feedback and the sum.
TEST_P(CodecConformance, ResidualIsInputMinusDecoded) { check_residual(GetParam()); }
TEST_P(CodecConformance, FeedbackChangesTheSecondStep) { check_two_steps(GetParam()); }
TEST_P(CodecConformance, CombineEqualsTheReference) { check_combine(GetParam()); }
TEST_P(CodecConformance, CombineInPlace) { check_combine_in_place(GetParam()); }
TEST_P(CodecConformance, NothingIsLostOverManySteps) { check_conservation(GetParam()); }
TEST_P(CodecConformance, HintsChangeNothing) { check_hints(GetParam()); }
TEST_P(CodecConformance, MeansOfHalfPrecisionGradients) {
  if (!GetParam().keeps_extremes) GTEST_SKIP() << "not claimed";
  check_half_precision_mean(GetParam());
}

// Stochastic rounding.
TEST_P(CodecConformance, StochasticBytesEqualTheReference) {
  if (!GetParam().stochastic) GTEST_SKIP() << "has no choice of rounding";
  check_stochastic_bytes(GetParam());
}
TEST_P(CodecConformance, StochasticRoundingDoesNotDependOnCuts) {
  if (!GetParam().stochastic) GTEST_SKIP() << "has no choice of rounding";
  check_stochastic_cuts(GetParam());
}
TEST_P(CodecConformance, StochasticRoundingHasTheRightMoments) {
  if (!GetParam().stochastic) GTEST_SKIP() << "has no choice of rounding";
  check_stochastic_moments(GetParam());
}

TEST_P(CodecConformance, StochasticRoundingKeepsTheLargestFinite) {
  if (!GetParam().stochastic) GTEST_SKIP() << "has no choice of rounding";
  check_stochastic_largest(GetParam());
}

// What is not finite.
TEST_P(CodecConformance, NonFiniteInput) { check_nonfinite_encode(GetParam()); }
TEST_P(CodecConformance, ScatteredNonFiniteInputIsCounted) { check_scattered_nonfinite(GetParam()); }
TEST_P(CodecConformance, LargestValues) { check_largest(GetParam()); }
TEST_P(CodecConformance, OutlierInABfloat16Buffer) {
  if (!GetParam().keeps_extremes) GTEST_SKIP() << "not claimed";
  check_bf16_outlier(GetParam());
}
TEST_P(CodecConformance, NonFiniteContributions) { check_nonfinite_combine(GetParam()); }
TEST_P(CodecConformance, NonFiniteValuesThatMeet) { check_meeting_nonfinite(GetParam()); }
TEST_P(CodecConformance, SumOutOfRange) {
  if (!GetParam().keeps_extremes) GTEST_SKIP() << "not claimed";
  check_sum_overflow(GetParam());
}

/// Names the instances by their codecs.
struct CodecName {
  std::string operator()(const ::testing::TestParamInfo<Subject>& info) const {
    std::string name;
    for (const char letter : info.param.name) name += std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
    return name;
  }
};
inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

/// One subject for each codec of a std::tuple.
template <class Codecs>
std::vector<Subject> subjects() {
  std::vector<Subject> all;
  std::apply([&](auto... codec) { (all.push_back(subject<decltype(codec)>()), ...); }, Codecs{});
  return all;
}

}  // namespace tightwire::testing
