#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <tightwire/core_session.hpp>

#include "model.hpp"
#include "ranks.hpp"

namespace tightwire::testing::sparse_course {

using Rows = std::vector<std::vector<float>>;

/// Gradients of all ranks at a step: bell-shaped, of another size on every rank.
inline Rows gradients_of(std::size_t ranks, std::size_t count, int step) {
  Rows rows;
  for (std::size_t r = 0; r < ranks; ++r) {
    FastRandom random(1000 * static_cast<std::uint64_t>(step) + r + 1);
    std::vector<float>& row = rows.emplace_back(count);
    for (float& x : row) x = (1.0f + static_cast<float>(r)) * random.bell();
  }
  return rows;
}

struct Course {
  std::vector<Rows> results;  ///< [rank][step]
  Rows residuals;             ///< [rank]
  std::vector<Statistics> totals;
};
/// Steps of a model of one parameter.
inline Course run(const Model& model, const SessionOptions& options, int ranks, int steps,
                  const std::function<Rows(int step)>& gradients) {
  const auto count = static_cast<std::size_t>(ranks);
  Course course{std::vector<Rows>(count), Rows(count), std::vector<Statistics>(count)};
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    const auto session = sealed_session(transport, model, options);
    Gradients buffer(model);
    for (int step = 0; step < steps; ++step) {
      const Rows all = gradients(step);
      buffer.fill([&](std::size_t, std::size_t i) { return all[me][i]; });
      session->all_reduce(buffer.pointers());
      session->commit();
      EXPECT_TRUE(buffer.guards_intact());
      course.results[me].push_back(buffer.values(0));
    }
    const auto residual = session->sender_residual(0);
    course.residuals[me].assign(residual.begin(), residual.end());
    course.totals[me] = session->total();
  });
  return course;
}

}  // namespace tightwire::testing::sparse_course
