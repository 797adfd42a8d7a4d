#pragma once
// A codec of one's own: three levels {-s, 0, s}, s the largest magnitude of the block. Everything else follows, on the
// CPU (own_codec.cpp) and on a GPU (own_codec.cu).
#include <string_view>

#include <tightwire/codec/stat.hpp>

struct ThreeLevels {
  static constexpr std::string_view name = "three_levels";
  static constexpr int bits = 4;
  static constexpr float accuracy = 0.8f;  // crude: for showing, not for training
  int block = 64;
  using Stat = tightwire::AbsMax;
  using Param = float;
  using Scale = float;
  TIGHTWIRE_HD static Param param(Stat stat) {
    return stat.finite() ? stat.value() : tightwire::detail::from_bits(0x7fc00000u);
  }
  TIGHTWIRE_HD static Scale scale(Param param) { return param; }
  TIGHTWIRE_HD static int code(float x, Scale s) { return x > 0.5f * s ? 1 : x < -0.5f * s ? -1 : 0; }
  TIGHTWIRE_HD static float value(int code, Scale s) { return static_cast<float>(code) * s; }
  static constexpr bool lossless(tightwire::ElementType) { return false; }
};
