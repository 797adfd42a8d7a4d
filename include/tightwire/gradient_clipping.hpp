#pragma once
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <tightwire/detail/float_environment.hpp>
#include <tightwire/host/momentum.hpp>
#include <tightwire/policy.hpp>

namespace tightwire::detail {

/// Scales the gradient of a rank down to its part of `clip_norm`, which is that of the mean of independent ranks.
/// Leaves one that is not finite as it is.
inline void clip(const std::vector<Parameter>& parameters, std::span<void* const> data, float clip_norm, int ranks) {
  const FloatEnvironment environment;
  double squares = 0;
  for (std::size_t id = 0; id < data.size(); ++id)
    squares += host::sum_of_squares(parameters[id].type, data[id], parameters[id].count);
  const double most = static_cast<double>(clip_norm) / std::sqrt(ranks);
  if (!(squares > most * most) || !std::isfinite(squares)) return;
  const auto factor = static_cast<float>(most / std::sqrt(squares));
  for (std::size_t id = 0; id < data.size(); ++id)
    host::scale(parameters[id].type, data[id], parameters[id].count, factor);
}

}  // namespace tightwire::detail
