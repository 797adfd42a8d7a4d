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
  /// In a form of the plan.
  std::size_t rank(std::size_t form) const {
    return worthwhile_rank(shape, settings.ranks[std::min(form, settings.ranks.size() - 1)]);
  }
};

/// Whether matrices with these settings can be in one bucket: ranks may differ, but not when they change.
inline bool go_together(const LowRankSettings& a, const LowRankSettings& b) {
  if (a.start_step != b.start_step || a.both_factors != b.both_factors || a.error != b.error) return false;
  return a.from_step == b.from_step && (!a.follows_error() || a.ranks == b.ranks);
}

/// The factor on the left has a row per row of the matrix, that on the right one per column.
enum class Side : std::uint8_t { left = 0, right = 1 };
constexpr Side other(Side side) { return side == Side::left ? Side::right : Side::left; }
constexpr std::size_t length(Side side, Shape shape) { return side == Side::left ? shape.rows : shape.columns; }

/// Matrices of one shape and of one rank, at any time: places in a plan. Their factors are orthonormalized together.
using Batch = std::vector<std::size_t>;

/// Every matrix is in one, and batches are in the order of their first matrices.
inline std::vector<Batch> equal_shapes(const std::vector<PlannedMatrix>& matrices) {
  std::vector<Batch> batches;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const auto same = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
      const PlannedMatrix& first = matrices[batch.front()];
      return first.shape == matrices[m].shape && first.settings.ranks == matrices[m].settings.ranks;
    });
    if (same == batches.end())
      batches.push_back({m});
    else
      same->push_back(m);
  }
  return batches;
}

/// The messages of factors of one rank. By side: factors, then what goes along.
struct Form {
  std::size_t rank = 0;  ///< the largest that is asked for
  std::array<std::vector<PlannedParameter>, 2> parameters;
  std::array<BucketPlan, 2> factors;
};

/// The messages of a bucket's matrices, and of what is sent whole along with them.
struct Plan {
  std::vector<PlannedMatrix> matrices;
  std::vector<Batch> batches;            ///< of the matrices
  std::vector<PlannedParameter> along;   ///< nothing of which is lost
  std::vector<Form> forms;               ///< by rank, as in the settings
  std::vector<std::uint64_t> from_step;  ///< of which each is used from then on, where ranks follow steps
  double error = 0;                      ///< not 0: the rank follows it, and left factors have one column more
  /// Before the first compressed step: matrices, then what goes along.
  std::vector<PlannedParameter> whole_parameters;
  BucketPlan whole;
  bool both_factors = true;
  std::uint64_t start_step = 0;
};

/// All matrices of a bucket go together.
inline Plan make_plan(std::vector<PlannedMatrix> matrices, std::vector<PlannedParameter> along, int ranks,
                      const PlanOptions& options) {
  Plan plan;
  plan.matrices = std::move(matrices);
  plan.batches = equal_shapes(plan.matrices);
  plan.along = std::move(along);
  if (plan.matrices.empty()) return plan;
  const LowRankSettings& settings = plan.matrices.front().settings;
  plan.both_factors = settings.both_factors;
  plan.start_step = settings.start_step;
  plan.error = settings.error;
  if (!settings.follows_error()) plan.from_step = settings.from_step;
  for (std::size_t f = 0; f < settings.ranks.size(); ++f) {
    Form form;
    for (const PlannedMatrix& matrix : plan.matrices) form.rank = std::max(form.rank, matrix.settings.ranks[f]);
    for (const Side side : {Side::left, Side::right}) {
      auto& parameters = form.parameters[static_cast<std::size_t>(side)];
      const std::size_t more = plan.error != 0 && side == Side::left ? 1 : 0;
      for (const PlannedMatrix& matrix : plan.matrices)
        parameters.push_back({(matrix.rank(f) + more) * length(side, matrix.shape), ElementType::f32,
                              matrix.settings.factors, matrix.number, false});
      // With two reductions in a step, what is sent whole goes with the first.
      if (!plan.both_factors || side == Side::left)
        parameters.insert(parameters.end(), plan.along.begin(), plan.along.end());
      form.factors[static_cast<std::size_t>(side)] = tightwire::make_plan(parameters, ranks, options);
    }
    plan.forms.push_back(std::move(form));
  }
  for (const PlannedMatrix& matrix : plan.matrices)
    plan.whole_parameters.push_back({matrix.elements(), matrix.type, Codec{}.coder(matrix.type), matrix.number, false});
  plan.whole_parameters.insert(plan.whole_parameters.end(), plan.along.begin(), plan.along.end());
  plan.whole = tightwire::make_plan(plan.whole_parameters, ranks, options);
  return plan;
}

}  // namespace tightwire::low_rank
