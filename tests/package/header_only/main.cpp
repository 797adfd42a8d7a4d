#include <tightwire/header_only.hpp>

#include <atomic>

// Three ranks in one process and nothing to link.
int main() {
  std::atomic<int> right{0};
  tightwire::local::run(3, [&](std::shared_ptr<tightwire::Transport> transport) {
    tightwire::Session session(transport, {.codec = tightwire::Int8{}});
    session.add("weight", {100, 33});
    session.seal();
    std::vector<float> gradient(3300, static_cast<float>(transport->rank()));
    session.all_reduce(std::span<float>(gradient));
    session.commit();
    if (gradient[3299] > 0.99f && gradient[3299] < 1.01f) ++right;
  });
  return right == 3 ? 0 : 1;
}
