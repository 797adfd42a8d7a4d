#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/calibration.hpp>
#include <tightwire/session_description.hpp>

namespace tightwire {

namespace detail {

/// Lossless first; the others in order of what they lose.
inline std::vector<Codec> automatic_candidates() {
  return {Codec{}, parse_codec("bf16"), parse_codec("int8"), parse_codec("int4")};
}

/// Of seconds by candidate, the one to take: the first, or a later one that takes less than nine tenths of the time of
/// the best before it, and 20 us less. So what loses more must gain something, and noise changes nothing.
inline std::size_t choose_by_time(const std::vector<double>& seconds) {
  constexpr double kWorthIt = 0.9, kLeastGain = 20e-6;
  std::size_t best = 0;
  for (std::size_t i = 1; i < seconds.size(); ++i)
    if (seconds[i] < kWorthIt * seconds[best] && seconds[i] < seconds[best] - kLeastGain) best = i;
  return best;
}

}  // namespace detail

/// The codec of `Auto`: measures links and candidates on the ranks of this job, at the size of its largest bucket,
/// predicts the time of all buckets with each by the cost model, and takes exact unless another one is faster by a
/// tenth, and by 20 us. Collective; every rank takes what rank 0
/// found. `channel` is the one on which the Session will agree on its plan. Throws what `agree` and a Session throw.
template <class SessionType>
Codec choose_codec(const std::shared_ptr<Transport>& transport, std::uint32_t channel, SessionOptions options,
                   const std::vector<Parameter>& parameters) {
  const std::vector<Codec> candidates = detail::automatic_candidates();
  // Ranks that were given other codecs or parameters are found here, rather than measured with.
  std::string question = "codec auto, still to be chosen\n";
  for (const Parameter& parameter : parameters) question += "parameter " + detail::describe(parameter) + "\n";
  agree(*transport, channel, question, options.timeout);
  std::size_t largest = 0, whole = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.operation != Operation::all_reduce) continue;
    whole += parameter.count * element_bytes(parameter.type);
    largest = std::max(largest, parameter.count * element_bytes(parameter.type));
  }
  if (transport->size() < 2 || whole == 0) return candidates.front();
  constexpr double kMostSeconds = 0.1;
  const std::size_t bytes = std::max(largest, std::min(whole, options.bucket_bytes));
  const int repeats = bytes < (std::size_t{1} << 20) ? 15 : 4;  // what is short is disturbed by more
  const Calibration calibration =
      calibrate<SessionType>(transport, options, candidates, {bytes}, kMostSeconds, repeats);
  const Cluster cluster{transport->size(), 1, calibration.link, calibration.link};
  std::vector<double> seconds;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Trial& trial = calibration.trials[i];
    options.codec = candidates[i];
    // Scaled so that the model agrees with what was measured.
    const double scale = trial.seconds / seconds_of(trial.load, cluster, calibration.costs);
    double sum = 0;
    for (const BucketLoad& load : simulate(options, parameters, transport->size(), 1))
      sum += seconds_of(load, cluster, calibration.costs);
    seconds.push_back(scale * sum);
  }
  const auto chosen = static_cast<std::uint64_t>(detail::choose_by_time(seconds));
  return candidates[gather_values(*transport, chosen, options.timeout).front()];
}

}  // namespace tightwire
