#include <tightwire/tightwire.hpp>

#include <atomic>

// Two ranks in one process, int4 from text: both hold the mean.
int main() {
  std::atomic<int> right{0};
  tightwire::local::run(2, [&](std::shared_ptr<tightwire::Transport> transport) {
    tightwire::Session session(transport, {.codec = tightwire::parse_codec("int4:block=32")});
    session.add("weight", {64, 64});
    session.seal();
    std::vector<float> gradient(64 * 64, transport->rank() == 0 ? 1.0f : 3.0f);
    session.all_reduce(std::span<float>(gradient));
    session.commit();
    if (gradient[0] > 1.9f && gradient[0] < 2.1f) ++right;
  });
  return right == 2 ? 0 : 1;
}
