#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model.hpp"
#include "ranks.hpp"

namespace tightwire::testing {

inline SessionOptions with(Algorithm algorithm) {
  SessionOptions options;
  options.plan.algorithm = algorithm;
  options.timeout = std::chrono::seconds(20);
  return options;
}
inline Model one_parameter(std::vector<std::int64_t> shape, const Codec& codec, ElementType type = ElementType::f32) {
  return {{"w", std::move(shape), type, codec}};
}

/// Whether, over all steps and ranks, the sum of a model's one parameter is that of the results and of what is kept.
/// The tolerance is relative to the sum of magnitudes.
inline ::testing::AssertionResult conserves(const Model& model, const SessionOptions& options, std::size_t steps,
                                            double tolerance) {
  constexpr std::size_t kRanks = 3;
  const std::size_t count = model[0].count();
  std::vector<std::vector<double>> in(kRanks, std::vector<double>(count)), kept = in, out = in, size = in;
  run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    for (std::uint64_t step = 0; step < steps; ++step) {
      gradients.fill_bell(100 * step + me);
      for (std::size_t i = 0; i < count; ++i) {
        in[me][i] += static_cast<double>(gradients.get(0, i));
        size[me][i] += std::abs(static_cast<double>(gradients.get(0, i)));
      }
      session->all_reduce(gradients.pointers());
      session->commit();
      for (std::size_t i = 0; i < count; ++i) out[me][i] += static_cast<double>(gradients.get(0, i));
    }
    for (std::size_t i = 0; i < count; ++i) kept[me][i] = static_cast<double>(session->sender_residual(0)[i]);
  });
  for (std::size_t i = 0; i < count; ++i) {
    double went_in = 0, came_out = static_cast<double>(kRanks) * out[0][i], all = 0;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      went_in += in[rank][i];
      came_out += kept[rank][i];
      all += size[rank][i];
    }
    if (!(std::abs(went_in - came_out) <= tolerance * all))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << went_in << " went in, " << came_out << " came out or is kept";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tightwire::testing
