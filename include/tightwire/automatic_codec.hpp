#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/calibration.hpp>
#include <tightwire/parameter_list.hpp>
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

/// Codecs beside the candidates whose costs the model needs: of rules, of exact buffers of 16 bits, inside nodes.
inline std::vector<Codec> codecs_beside(const std::vector<Codec>& candidates, const SessionOptions& options,
                                        const std::vector<std::vector<BucketLoad>>& loads) {
  std::map<std::string, Codec> given;  // those of the user's own are not known by name
  for (const auto* rules : {&options.policy.rules, &options.policy.exact_by_default})
    for (const Rule& rule : *rules) {
      if (rule.codec.automatic()) continue;
      given.emplace(cost_name(rule.codec), rule.codec);
      if (const SparseSettings* sparse = rule.codec.sparse())
        given.emplace(sparse->values->spec(), Codec(sparse->values));
      if (const LowRankSettings* low_rank = rule.codec.low_rank())
        given.emplace(low_rank->factors->spec(), Codec(low_rank->factors));
    }
  std::map<std::string, Codec> beside;
  if (options.hierarchy) {
    given.insert_or_assign(cost_name(options.hierarchy.inside), options.hierarchy.inside);
    beside.emplace(cost_name(options.hierarchy.inside), options.hierarchy.inside);
  }
  for (const std::vector<BucketLoad>& of_candidate : loads)
    for (const BucketLoad& load : of_candidate)
      for (const Stage& stage : load)
        for (const CodecWork& work : stage.work) {
          const auto known = given.find(work.codec);
          beside.emplace(work.codec, known != given.end() ? known->second : parse_codec(work.codec));
        }
  for (const Codec& candidate : candidates) beside.erase(cost_name(candidate));
  std::vector<Codec> codecs;
  for (auto& [name, codec] : beside) codecs.push_back(std::move(codec));
  return codecs;
}

/// Seconds of all buckets by the model, of each scaled by `scales` of the codec that has most to do in it: how far the
/// model was off where that was measured. So buckets that are the same for two candidates take the same time.
inline double predicted_seconds(const std::vector<BucketLoad>& loads, const std::map<std::string, double>& scales,
                                const Cluster& cluster, const CodecCosts& costs) {
  double sum = 0;
  for (const BucketLoad& load : loads) {
    std::map<std::string, double> bytes;
    for (const Stage& stage : load)
      for (const CodecWork& work : stage.work) bytes[work.codec] += work.encoded + work.combined + work.decoded;
    const auto most =
        std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto scale = most == bytes.end() ? scales.end() : scales.find(most->first);
    sum += seconds_of(load, cluster, costs) * (scale == scales.end() ? 1 : scale->second);
  }
  return sum;
}

/// Bytes in fp32 of the largest bucket of all-reduced parameters.
inline std::size_t largest_bucket(const ParameterList& filled) {
  std::size_t largest = 0;
  for (const Bucket& bucket : filled.buckets()) {
    std::size_t bytes = 0;
    for (const ParameterId id : bucket.parameters)
      if (const Parameter& parameter = filled.parameters()[id]; parameter.operation == Operation::all_reduce)
        bytes += parameter.count * sizeof(float);
    largest = std::max(largest, bytes);
  }
  return largest;
}

/// What ranks must have alike before they measure, line by line. `options.codec` is the automatic one.
inline std::string auto_question(const SessionOptions& options, const ParameterList& filled) {
  std::string text = describe(options, filled.ranks(), {}, std::deque<Bucket>{});
  for (const Parameter& parameter : filled.parameters()) {
    text += "parameter " + describe(parameter) + options.policy.choose(parameter, options.codec).spec() + "\n";
  }
  for (const Bucket& bucket : filled.buckets()) {
    text += "bucket of parameters";
    for (const ParameterId id : bucket.parameters) text += " " + std::to_string(id);
    text += "\n";
  }
  return text;
}

/// Throws Error(corrupt) for a number that none of the codecs has.
inline const Codec& codec_of_rank_0(const std::vector<Codec>& codecs, std::uint64_t number) {
  if (number >= codecs.size())
    throw Error(Errc::corrupt, "codec auto: rank 0 chose number " + std::to_string(number) + " of " +
                                   std::to_string(codecs.size()) + " codecs");
  return codecs[static_cast<std::size_t>(number)];
}

}  // namespace detail

/// The codec of `Auto`: measures links and candidates on the ranks of this job, at the size of its largest bucket,
/// predicts the time of all buckets with each by the cost model, and takes exact unless another one is faster by a
/// tenth, and by 20 us. Other codecs that the parameters ask for (by rules, by type, inside nodes) are measured too.
/// Collective; every rank takes what rank 0 found. `channel` is the one on which the Session will agree on its plan.
/// Throws what `agree` and a Session throw.
template <class SessionType>
Codec choose_codec(const std::shared_ptr<Transport>& transport, std::uint32_t channel, SessionOptions options,
                   const ParameterList& list) {
  std::vector<Codec> codecs = detail::automatic_candidates();
  std::vector<std::vector<BucketLoad>> loads;
  std::size_t largest = 0;  // of buckets, in fp32
  // Ranks that would measure other codecs, or at another size, are found here rather than measured with.
  agree_on(*transport, channel, options.timeout, [&] {
    const std::vector<std::vector<ParameterId>> declared = list.declared();
    const ParameterList filled =
        detail::filled_list(list.parameters(), declared, transport->size(), options.bucket_bytes);
    largest = detail::largest_bucket(filled);
    std::string question = "codec auto, still to be chosen\n" + detail::auto_question(options, filled);
    for (const Codec& candidate : codecs) {
      options.codec = candidate;
      loads.push_back(simulate(options, list.parameters(), transport->size(), 1, 0, declared));
    }
    for (Codec& codec : detail::codecs_beside(codecs, options, loads)) codecs.push_back(std::move(codec));
    for (const Codec& codec : codecs) question += "measured " + detail::cost_name(codec) + "\n";
    return question;
  });
  if (transport->size() < 2 || largest == 0) return codecs.front();
  constexpr double kMostSeconds = 0.1;
  const Repeats repeats{largest < (std::size_t{1} << 20) ? 15 : 4, true};  // what is short is disturbed by more
  const Calibration calibration = calibrate<SessionType>(transport, options, codecs, {largest}, kMostSeconds, repeats);
  const Cluster cluster{transport->size(), 1, calibration.link, calibration.link};
  std::map<std::string, double> scales;
  for (std::size_t i = 0; i < codecs.size(); ++i)
    scales[detail::cost_name(codecs[i])] =
        calibration.trials[i].seconds / seconds_of(calibration.trials[i].load, cluster, calibration.costs);
  std::vector<double> seconds;
  for (const std::vector<BucketLoad>& of_candidate : loads)
    seconds.push_back(detail::predicted_seconds(of_candidate, scales, cluster, calibration.costs));
  const auto chosen = static_cast<std::uint64_t>(detail::choose_by_time(seconds));
  return detail::codec_of_rank_0(codecs, gather_values(*transport, chosen, options.timeout).front());
}

}  // namespace tightwire
