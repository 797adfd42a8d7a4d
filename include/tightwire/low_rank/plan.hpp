#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/settings.hpp>
#include <tightwire/plan.hpp>

namespace tightwire::low_rank {

/// A parameter that is sent as factors.
struct PlannedMatrix {
  Shape shape;
  ElementType type;
  LowRankSettings settings;
  std::uint32_t number = 0;  ///< among all parameters of the Session

  std::size_t elements() const { return shape.rows * shape.columns; }
  std::size_t rank() const { return std::min({settings.rank, shape.rows, shape.columns}); }
};

/// The factor on the left has a row per row of the matrix, that on the right one per column.
enum class Side : std::uint8_t { left = 0, right = 1 };
constexpr Side other(Side side) { return side == Side::left ? Side::right : Side::left; }
constexpr std::size_t length(Side side, Shape shape) { return side == Side::left ? shape.rows : shape.columns; }

/// The messages of a bucket's matrices, and of what is sent whole along with them.
struct Plan {
  std::vector<PlannedMatrix> matrices;
  std::vector<PlannedParameter> along;  ///< nothing of which is lost
  /// Of the reductions, by side: factors, then what goes along.
  std::array<std::vector<PlannedParameter>, 2> parameters;
  std::array<BucketPlan, 2> factors;
  /// Before the first compressed step: matrices, then what goes along.
  std::vector<PlannedParameter> whole_parameters;
  BucketPlan whole;
  bool both_factors = true;
  std::uint64_t start_step = 0;
};

/// All matrices of a bucket have the same settings, but for the rank.
inline Plan make_plan(std::vector<PlannedMatrix> matrices, std::vector<PlannedParameter> along, int ranks,
                      const PlanOptions& options) {
  Plan plan;
  plan.matrices = std::move(matrices);
  plan.along = std::move(along);
  if (plan.matrices.empty()) return plan;
  plan.both_factors = plan.matrices.front().settings.both_factors;
  plan.start_step = plan.matrices.front().settings.start_step;
  for (const PlannedMatrix& matrix : plan.matrices) {
    for (const Side side : {Side::left, Side::right})
      plan.parameters[static_cast<std::size_t>(side)].push_back({matrix.rank() * length(side, matrix.shape),
                                                                 ElementType::f32, matrix.settings.factors,
                                                                 matrix.number, false});
    plan.whole_parameters.push_back({matrix.elements(), matrix.type, Codec{}.coder(matrix.type), matrix.number, false});
  }
  for (const Side side : {Side::left, Side::right}) {
    auto& parameters = plan.parameters[static_cast<std::size_t>(side)];
    // With two reductions in a step, what is sent whole goes with the first.
    if (!plan.both_factors || side == Side::left)
      parameters.insert(parameters.end(), plan.along.begin(), plan.along.end());
    plan.factors[static_cast<std::size_t>(side)] = tightwire::make_plan(parameters, ranks, options);
  }
  plan.whole_parameters.insert(plan.whole_parameters.end(), plan.along.begin(), plan.along.end());
  plan.whole = tightwire::make_plan(plan.whole_parameters, ranks, options);
  return plan;
}

}  // namespace tightwire::low_rank
