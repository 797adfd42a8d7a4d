#pragma once
#include <tuple>

#include <tightwire/codec/affine.hpp>
#include <tightwire/codec/codebook.hpp>
#include <tightwire/codec/dense.hpp>
#include <tightwire/codec/integer.hpp>
#include <tightwire/codec/nvfp4.hpp>
#include <tightwire/codec/qsgd.hpp>
#include <tightwire/codec/sign.hpp>
#include <tightwire/codec/small_float.hpp>
#include <tightwire/codec/ternary.hpp>

/// Every codec the library ships. Adding a codec is one header above and one name here; the lists are compiled side by
/// side.
// clang-format off
#define TIGHTWIRE_EXACT_CODECS(with) with(Dense) with(Bf16) with(Fp16)
#define TIGHTWIRE_INTEGER_CODECS(with)                                                                         \
  with(Int8) with(Int7) with(Int6) with(Int5) with(Int4) with(Int3) with(Int2)                                 \
  with(SignedAbsMaxInt<8>) with(SignedAbsMaxInt<7>) with(SignedAbsMaxInt<6>)                                   \
  with(SymmetricInt<5>) with(SymmetricInt<4>) with(SymmetricInt<3>) with(SymmetricInt<2>)                      \
  with(Qsgd<8>) with(Qsgd<4>) with(Ternary) with(TernaryFive) with(Sign)
#define TIGHTWIRE_AFFINE_AND_FLOAT_CODECS(with)                                                                \
  with(AffineInt<8>) with(AffineInt<7>) with(AffineInt<6>) with(AffineInt<5>)                                  \
  with(AffineInt<4>) with(AffineInt<3>) with(AffineInt<2>) with(AffineInt<1>)                                  \
  with(Fp8E4M3) with(Fp8E5M2) with(Fp4) with(MxFp8E4M3) with(MxFp8E5M2) with(MxFp4) with(NvFp4)                \
  with(Nuq<5>) with(Nuq<4>) with(Nuq<3>)
#define TIGHTWIRE_CODEBOOK_CODECS(with)                                                                        \
  with(Lloyd<4>) with(Lloyd<3>) with(Lloyd<2>) with(Lloyd<1>)                                                  \
  with(Lloyd<kNineLevels>) with(Lloyd<kSixLevels>) with(Lloyd<kThreeLevels>)                                   \
  with(Eden<4>) with(Eden<3>) with(Eden<2>) with(Eden<1>)                                                      \
  with(Eden<kNineLevels>) with(Eden<kSixLevels>) with(Eden<kThreeLevels>)
#define TIGHTWIRE_CODECS(with)                                                                                 \
  TIGHTWIRE_EXACT_CODECS(with) TIGHTWIRE_INTEGER_CODECS(with) TIGHTWIRE_AFFINE_AND_FLOAT_CODECS(with)          \
  TIGHTWIRE_CODEBOOK_CODECS(with)
// clang-format on

namespace tightwire {
namespace detail {

/// Grows name by name, since a macro list has no commas.
template <class... Codecs>
struct CodecNames {
  template <class Codec>
  using With = CodecNames<Codecs..., Codec>;
  using Tuple = std::tuple<Codecs...>;
};

}  // namespace detail

#define TIGHTWIRE_WITH(codec) ::With<codec>
using BuiltinCodecs = detail::CodecNames<> TIGHTWIRE_CODECS(TIGHTWIRE_WITH)::Tuple;
#undef TIGHTWIRE_WITH

}  // namespace tightwire
