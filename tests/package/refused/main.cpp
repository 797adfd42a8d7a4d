#include <tightwire/header_only.hpp>

// A codec whose values are of the wrong type.
struct Wrong {
  static constexpr std::string_view name = "wrong";
  static constexpr int bits = 8;
  static constexpr float accuracy = 0.1f;
  int block = 64;
  using Stat = tightwire::AbsMax;
  using Param = float;
  using Scale = float;
  static Param param(Stat stat) { return stat.value(); }
  static Scale scale(Param param) { return param; }
  static int code(float x, Scale scale) { return x > scale ? 1 : 0; }
  static double value(int code, Scale scale) { return static_cast<double>(code) * static_cast<double>(scale); }
  static constexpr bool lossless(tightwire::ElementType) { return false; }
};

// Its own `value` would never be called: int8 has that of its Arithmetic.
struct Ignored : tightwire::Int8 {
  static float value(int code, Scale scale) { return static_cast<float>(code) * scale.step; }
};
static_assert(!tightwire::BlockCodec<Ignored>);

int main() { const tightwire::HostCoder<Wrong> coder; }
