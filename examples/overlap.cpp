// Buckets that are reduced while backward still runs: start each when its gradients are ready, wait before the
// optimizer.
#include <tightwire/tightwire.hpp>

#include <iostream>

int main() {
  tightwire::local::run(4, [](std::shared_ptr<tightwire::Transport> transport) {
    tightwire::Session session(transport, {.codec = tightwire::Int4{}});
    std::vector<std::vector<float>> gradients;
    std::vector<tightwire::BucketId> buckets;
    for (int layer = 0; layer < 8; ++layer) {
      const auto id = session.add("layer" + std::to_string(layer), {128, 128});
      buckets.push_back(session.add_bucket(std::vector{id}));
      gradients.emplace_back(128 * 128, static_cast<float>(transport->rank() + layer));
    }
    session.seal();

    std::vector<tightwire::Handle> under_way;
    for (std::size_t layer = buckets.size(); layer-- > 0;) {  // backward goes from the last layer to the first
      void* pointer = gradients[layer].data();
      under_way.push_back(session.start(buckets[layer], {&pointer, 1}));
    }
    for (tightwire::Handle& handle : under_way) handle.wait();
    session.commit();
    if (transport->rank() == 0) std::cout << "layer 7 has mean " << gradients[7][0] << '\n';  // 7 + (0+1+2+3)/4 = 8.5
  });
}
