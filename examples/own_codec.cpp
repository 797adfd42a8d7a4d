// A codec of one's own: three levels {-s, 0, s}, s the largest magnitude of the block. Everything else follows.
#include <tightwire/tightwire.hpp>

#include <iostream>

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

int main() {
  tightwire::local::run(3, [](std::shared_ptr<tightwire::Transport> transport) {
    tightwire::Session session(transport, {.codec = ThreeLevels{}});
    session.add("weight", {64, 64});
    session.seal();
    double sum = 0;
    for (int step = 0; step < 200; ++step) {
      std::vector<float> gradient(64 * 64, 0.25f);
      gradient[0] = 1.0f;  // makes 0.25 too small for this codec; the residuals bring it through all the same
      session.all_reduce(std::span<float>(gradient));
      session.commit();
      sum += gradient[1];
    }
    if (transport->rank() == 0) std::cout << "average of what came through: " << sum / 200 << " (sent: 0.25)\n";
  });
}
