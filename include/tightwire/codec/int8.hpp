#pragma once
#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>

namespace tightwire {

/// Symmetric 8-bit integers in [-127, 127], one bf16 step per block: 8.0625 bits per element at block 256.
/// Error at most half a step, step = max|x| / 127 (to 2^-8). Zero is exact; odd-symmetric.
struct Int8 {
  static constexpr std::string_view name = "int8";
  static constexpr int bits = 8;
  static constexpr float accuracy = 0.009f;
  int block = 256;

  using Stat = AbsMax;
  using Param = std::uint16_t;
  using Scale = detail::StepScale;
  static constexpr detail::StepRange range{-127.0f, 127.0f};

  TIGHTWIRE_HD static constexpr Param param(Stat stat) { return detail::step_bits(stat.value(), 127.0f); }
  TIGHTWIRE_HD static constexpr Scale scale(Param param) { return detail::step_scale(param, range); }
  TIGHTWIRE_HD static constexpr auto code(const auto& x, Scale scale) { return detail::step_code(x, scale); }
  TIGHTWIRE_HD static constexpr auto value(const auto& code, Scale scale) { return detail::step_value(code, scale); }
  static constexpr bool lossless(ElementType) { return false; }
};
static_assert(BlockCodec<Int8>);

}  // namespace tightwire
