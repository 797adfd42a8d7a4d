#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/cost_model.hpp>
#include <tightwire/link_measurement.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/simulation.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire {

/// An all-reduce that was measured.
struct Trial {
  std::string codec;
  double bucket_bytes = 0;
  double seconds = 0;  ///< of the slowest rank, in the repeat that counts
  BucketLoad load;     ///< of rank 0
};

/// How often an all-reduce is measured, and which of these times counts: the middle one tells what a step will usually
/// take, the fastest, to which other work on the machine added least, compares better where there is time for few.
struct Repeats {
  int number = 4;
  bool fastest = false;
};

/// What a job's links and codecs cost, as measured on all of its ranks together.
struct Calibration {
  int ranks = 2;
  LinkCost link;
  CodecCosts costs;
  std::vector<Trial> trials;
  bool shares_memory = false;  ///< `link` is of ranks that reach each other through memory, and tells of no network
  int ranks_per_core = 0;      ///< on the fullest core; 0: not known
};

/// A matrix about as long as it is wide.
inline std::vector<std::int64_t> matrix_of(std::size_t elements) {
  std::size_t rows = 1;
  while (4 * rows * rows <= elements && elements % (2 * rows) == 0) rows *= 2;
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(elements / rows)};
}

namespace detail {

/// Element i of a rank's gradient for measurements: bell-shaped, deviation 2^-10, another one on each rank.
inline float gradient_like(int rank, std::size_t i) {
  const auto mix = [](std::uint64_t z) {  // splitmix64
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  const std::uint64_t bits = mix(mix(static_cast<std::uint64_t>(rank)) + 0x9e3779b97f4a7c15u * i);
  int sum = 0;  // of four uniforms
  for (int part = 0; part < 4; ++part) sum += static_cast<int>(bits >> (16 * part) & 0xffff) - 0x8000;
  return static_cast<float>(sum) * 0x1.bb67aep-26f;
}
inline void fill_like_gradient(std::span<float> gradient, int rank) {
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = gradient_like(rank, i);
}

/// Only codecs of blocks have all three costs; of others all but their values' and factors' goes to `encode`. Forming
/// sums includes encodings, which are taken to cost what others do; adding, what is left, but no less than half of
/// decoding, which reads as much and writes what it read.
inline CodecCost cost_of(const Codec& codec, const BucketLoad& load, const Statistics& statistics) {
  CodecWork total;
  for (const Stage& stage : load)
    for (const CodecWork& work : stage.work) {
      const bool own = (codec.sparse() == nullptr && codec.low_rank() == nullptr) || work.codec == codec.spec();
      if (!own) continue;
      total.encoded += work.encoded;
      total.encoded_in_sums += work.encoded_in_sums;
      total.combined += work.combined;
      total.decoded += work.decoded;
    }
  const auto each = [&](double seconds, double bytes) { return bytes > 0 ? seconds / bytes : 0; };
  if (codec.sparse() != nullptr || codec.low_rank() != nullptr)
    return {each(statistics.encode_seconds + statistics.combine_seconds + statistics.decode_seconds, total.encoded), 0,
            0};
  const double encode = each(statistics.encode_seconds, total.encoded - total.encoded_in_sums);
  const double decode = each(statistics.decode_seconds, total.decoded);
  const double combine = each(statistics.combine_seconds - encode * total.encoded_in_sums, total.combined);
  return {encode, std::max(combine, decode / 2), decode};
}

/// Under which name the model knows what a codec of `SessionOptions` costs.
inline std::string cost_name(const Codec& codec) {
  return codec.sparse() != nullptr || codec.low_rank() != nullptr ? codec.spec()
                                                                  : codec.coder(ElementType::f32)->spec();
}

}  // namespace detail

/// Measures the all-reduce of a bucket of fp32 by a Session of its own and adds it to the calibration. Collective, the
/// same figures on every rank.
template <class SessionType>
void measure_codec(const std::shared_ptr<Transport>& transport, SessionOptions options, std::size_t elements,
                   Repeats repeats, Calibration& calibration) {
  options.policy = {.rules = {}, .exact_by_default = {}};
  options.bucket_bytes = elements * sizeof(float);
  options.momentum = {};
  options.observer = {};  // is for the Session that the measurement is for
  options.nonfinite = NonFinitePolicy::propagate;
  SessionType session(transport, options);
  session.add("trial", matrix_of(elements));
  session.seal();
  Workspace memory(elements * sizeof(float));
  const std::span<float> gradient(reinterpret_cast<float*>(memory.data()), elements);
  JointClock clock(*transport, options.timeout);
  // Times are the same on all ranks, and so is the choice.
  std::vector<std::pair<double, Statistics>> tries;
  for (int i = -1; i < std::max(repeats.number, 1); ++i) {
    detail::fill_like_gradient(gradient, transport->rank());
    const double took = clock.seconds([&] {
      session.all_reduce(gradient);
      session.commit();
    });
    if (i >= 0) tries.emplace_back(took, session.last_step());
  }
  const auto counts = tries.begin() + (repeats.fastest ? 0 : static_cast<std::ptrdiff_t>(tries.size() / 2));
  std::nth_element(tries.begin(), counts, tries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Statistics& statistics = counts->second;
  for (double* part : {&statistics.encode_seconds, &statistics.combine_seconds, &statistics.decode_seconds})
    *part = clock.largest_seconds(*part);
  Trial trial{options.codec.spec(), 4.0 * static_cast<double>(elements), counts->first, {}};
  trial.load = simulate(options, session.parameters(), session.size(), 1).front();
  const std::string name = detail::cost_name(options.codec);
  for (const Stage& stage : trial.load)
    for (const CodecWork& work : stage.work)
      if (work.codec == name)
        calibration.costs.add(name, trial.bucket_bytes, detail::cost_of(options.codec, trial.load, statistics));
  calibration.trials.push_back(std::move(trial));
}

namespace detail {

/// How far the model is from the trials: the mean square of the logarithm of measured over predicted, where trials
/// count by their time, since what takes long is what predictions are for.
inline double misfit(const Calibration& calibration, const LinkCost& link) {
  const Cluster cluster{calibration.ranks, 1, link, link};
  double sum = 0, weights = 0;
  for (const Trial& trial : calibration.trials) {
    const double off = std::log(trial.seconds / seconds_of(trial.load, cluster, calibration.costs));
    const double weight = std::sqrt(trial.seconds);
    sum += weight * off * off;
    weights += weight;
  }
  return sum / weights;
}

}  // namespace detail

/// Makes the link's figures those that explain the trials best. Messages alone do not tell how much of the work hides
/// behind the wire, nor what a transport costs beside it: latency, overlap and rate are searched around what was
/// measured. The rate may be nearly three times that: many senders to one receiver, all at once, fill a switch's queue,
/// which reductions in chunks do not.
inline void fit_link(Calibration& calibration) {
  if (calibration.trials.empty()) return;
  const LinkCost measured = calibration.link;
  double best = detail::misfit(calibration, measured);
  for (const double latency : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0})
    for (int rate = -20; rate <= 24; ++rate)
      for (int overlap = 10; overlap >= 0; --overlap) {
        LinkCost link = measured;
        link.latency_seconds *= latency;
        link.bytes_per_second *= std::pow(0.95, rate);
        link.overlap = 0.1 * overlap;
        const double off = detail::misfit(calibration, link) + 1e-6 * std::abs(rate);
        if (off >= best) continue;
        best = off;
        calibration.link = link;
      }
}

/// Measures links and codecs of a job. Of each size only codecs are measured whose bytes take the link at most
/// `most_seconds`. Collective, the same figures on every rank. Throws Error(invalid_argument) for a single rank and for
/// a codec that is not known.
template <class SessionType>
Calibration calibrate(const std::shared_ptr<Transport>& transport, const SessionOptions& options,
                      const std::vector<Codec>& codecs, const std::vector<std::size_t>& bucket_bytes,
                      double most_seconds, Repeats repeats) {
  Calibration calibration{.ranks = transport->size(),
                          .link = measure_link(*transport, 0.02, options.timeout),
                          .costs = {},
                          .trials = {},
                          .shares_memory = transport->shares_memory()};
  for (const Codec& codec : codecs) {
    bool measured = false;
    for (const std::size_t bytes : bucket_bytes) {
      std::size_t elements = std::max<std::size_t>(bytes / sizeof(float), 1);
      // An odd number makes no matrix, and what is no matrix has no factors.
      constexpr std::size_t kMatrix = 4096;
      if (codec.low_rank() != nullptr) elements = (elements + kMatrix - 1) / kMatrix * kMatrix;
      SessionOptions with = options;
      with.codec = codec;
      const auto wire_seconds = [&] {
        const Parameter parameter{.name = "trial", .shape = matrix_of(elements)};
        with.policy = {.rules = {}, .exact_by_default = {}};
        with.bucket_bytes = elements * sizeof(float);
        const BucketLoad load = simulate(with, {parameter}, transport->size(), 1).front();
        return sent_by(load).bytes / calibration.link.bytes_per_second;
      };
      // What takes too long is measured smaller, once.
      bool cut = false;
      for (; wire_seconds() > most_seconds && elements > (std::size_t{1} << 12); cut = true) elements /= 2;
      if (cut && measured) continue;
      measure_codec<SessionType>(transport, with, elements, repeats, calibration);
      measured = true;
    }
  }
  fit_link(calibration);
  return calibration;
}

}  // namespace tightwire
