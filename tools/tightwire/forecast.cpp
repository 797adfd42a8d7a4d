#include "forecast.hpp"

#include <tightwire/core_session.hpp>
#include <tightwire/simulation.hpp>

namespace tightwire::tool {
namespace {

Forecast forecast_one(const std::vector<Parameter>& parameters, const SessionOptions& options, const Cluster& cluster,
                      const CodecCosts& costs, double compute_seconds) {
  Forecast forecast{.codec = options.codec.spec(),
                    .by_levels = static_cast<bool>(options.hierarchy),
                    .ring = options.plan.algorithm == Algorithm::ring,
                    .step = {}};
  std::vector<double> seconds;
  for (const BucketLoad& load : simulate(options, parameters, cluster.ranks, cluster.per_node)) {
    seconds.push_back(seconds_of(load, cluster, costs));
    for (const Stage& stage : load) forecast.rounds += stage.rounds;
    const Sent all = sent_by(load), across = sent_by(load, true);
    forecast.rank_bytes += all.bytes;
    forecast.messages += all.messages;
    forecast.node_bytes += across.bytes * (forecast.ring ? 1 : cluster.per_node);
  }
  forecast.step = step_time(seconds, compute_seconds);
  return forecast;
}

}  // namespace

Advice forecast(const std::vector<Parameter>& parameters, const std::vector<std::string>& codecs,
                const SessionOptions& options, const Cluster& cluster, const CodecCosts& costs,
                double compute_seconds) {
  Advice advice;
  const auto add = [&](const SessionOptions& with) {
    advice.forecasts.push_back(forecast_one(parameters, with, cluster, costs, compute_seconds));
    advice.forecasts.back().options = with;
  };
  if (cluster.ranks % cluster.per_node != 0)
    throw Error(Errc::invalid_argument, std::to_string(cluster.ranks) + " ranks are no multiple of " +
                                            std::to_string(cluster.per_node) + " per node");
  const bool levels = cluster.per_node > 1 && cluster.ranks > cluster.per_node;
  for (const std::string& spec : codecs) {
    SessionOptions with = options;
    with.codec = parse_codec(spec);
    add(with);
    if (!levels || with.codec.sparse() != nullptr || with.codec.low_rank() != nullptr) continue;
    with.hierarchy = Hierarchy::of_equal_nodes(cluster.ranks, cluster.per_node);
    add(with);
    with.hierarchy = {};
    with.plan.algorithm = Algorithm::ring;
    try {
      add(with);
    } catch (const Error& error) {
      if (error.code() != Errc::unsupported) throw;  // some of the model is below 16 bits
    }
  }
  const auto seconds = [&](std::size_t i) { return advice.forecasts[i].step.seconds; };
  for (std::size_t i = 0; i < advice.forecasts.size(); ++i) {
    if (seconds(i) < seconds(advice.best)) advice.best = i;
    const bool exact = advice.forecasts[i].codec == "exact";
    if (exact && (advice.forecasts[advice.exact].codec != "exact" || seconds(i) < seconds(advice.exact)))
      advice.exact = i;
  }
  constexpr double kWorthIt = 0.95;
  advice.compress = seconds(advice.best) < kWorthIt * seconds(advice.exact);
  if (!advice.compress) advice.best = advice.exact;
  return advice;
}

void add_memory(Advice& advice, const std::vector<Parameter>& parameters, int ranks) {
  for (Forecast& of : advice.forecasts) of.frame_bytes = simulate_frame_bytes(of.options, parameters, ranks);
}

}  // namespace tightwire::tool
