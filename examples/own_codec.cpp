// A codec of one's own (three_levels.hpp) in a Session.
#include <tightwire/tightwire.hpp>

#include <iostream>

#include "three_levels.hpp"

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
