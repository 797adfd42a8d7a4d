#pragma once
#include <functional>
#include <vector>

#include "model.hpp"
#include "ranks.hpp"

namespace tightwire::testing {

/// Element types and codecs of every kind in one model, with sizes that are multiples of nothing.
inline Model mixed_model() {
  return {{"scalar", {}, ElementType::f32, Codec{}},
          {"empty", {0, 7}, ElementType::f32, Int8{}},
          {"odd", {17}, ElementType::f32, Int8{.block = 16}},
          {"matrix8", {37, 61}, ElementType::f32, Int8{}},
          {"matrix4", {129, 33}, ElementType::f32, Int4{}},
          {"bf16 in 4", {701}, ElementType::bf16, Int4{.block = 32}},
          {"fp16 in 8", {51, 20}, ElementType::f16, Int8{.block = 64}},
          {"bias", {65}, ElementType::bf16, Codec{}},
          {"as bf16", {333}, ElementType::f32, Bf16{}},
          {"as fp16", {1000}, ElementType::bf16, Fp16{}},
          {"wide block", {2500}, ElementType::f32, Int4{.block = 1024}},
          {"one", {1}, ElementType::f16, Int4{}}};
}

/// What `steps` steps make of the gradients: for every rank the bytes of all buffers after each step, one behind the
/// other. Gradients are a function of rank and step alone.
struct Steps {
  Model model = mixed_model();
  SessionOptions options = {};
  int steps = 3;
  int exponents = 12;  ///< how far the magnitudes spread, in powers of two each way
  /// What a rank does in place of `all_reduce`.
  std::function<void(Session&, Gradients&)> reduce = [](Session& session, Gradients& gradients) {
    session.all_reduce(gradients.pointers());
  };

  static std::uint64_t seed(int rank, int step) {
    return 1000 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(rank) + 1;
  }

  std::vector<std::vector<std::byte>> run(const Transports& transports) const {
    std::vector<std::vector<std::byte>> results(transports.size());
    run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, options);
      Gradients gradients(model);
      for (int step = 0; step < steps; ++step) {
        gradients.fill_wide(seed(transport->rank(), step), exponents);
        reduce(*session, gradients);
        EXPECT_TRUE(session->commit());
        EXPECT_TRUE(gradients.guards_intact());
        const std::vector<std::byte> bytes = gradients.bytes();
        auto& result = results[static_cast<std::size_t>(transport->rank())];
        result.insert(result.end(), bytes.begin(), bytes.end());
      }
    });
    return results;
  }
  std::vector<std::vector<std::byte>> run(int ranks) const { return run(local::make(ranks)); }
};

/// Every rank holds the same bytes, and some were produced.
inline ::testing::AssertionResult all_equal(const std::vector<std::vector<std::byte>>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].empty()) return ::testing::AssertionFailure() << "rank " << rank << " has no result";
    if (results[rank] == results[0]) continue;
    std::size_t at = 0;
    while (results[rank][at] == results[0][at]) ++at;
    return ::testing::AssertionFailure() << "rank " << rank << " differs from rank 0 at byte " << at << " of "
                                         << results[0].size();
  }
  return ::testing::AssertionSuccess();
}

/// Buckets of a few parameters each, started in an order that differs between ranks and steps, waited for in another.
inline std::function<void(Session&, Gradients&)> in_random_order(std::uint64_t seed) {
  return [seed](Session& session, Gradients& gradients) {
    FastRandom random(seed + 77 * static_cast<std::uint64_t>(session.rank()) + session.steps());
    std::vector<BucketId> order(session.buckets());
    for (BucketId id = 0; id < order.size(); ++id) order[id] = id;
    const auto shuffle = [&](auto& list) {
      for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
    };
    shuffle(order);
    std::vector<Handle> handles;
    for (const BucketId id : order) {
      std::vector<void*> pointers;
      for (const ParameterId p : session.bucket_parameters(id)) pointers.push_back(gradients.pointers()[p]);
      handles.push_back(session.start(id, pointers));
    }
    shuffle(handles);
    for (Handle& handle : handles) handle.wait();
  };
}

}  // namespace tightwire::testing
