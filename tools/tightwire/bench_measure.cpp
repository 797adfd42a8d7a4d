#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <set>
#include <utility>

#include <tightwire/hierarchy_text.hpp>
#include <tightwire/tightwire.hpp>

#include "bench_rows.hpp"
#include "measurement.hpp"

namespace tightwire::tool {
namespace {

/// Gradient bytes above which codecs are measured one by one, each beside exact, since all together would not fit.
constexpr std::uint64_t kLargestTogether = std::uint64_t{32} << 20;
/// A round takes at least about this long.
constexpr double kShortestRound = 2e-4;

/// One codec's Session and what it was found to do.
struct Subject {
  SessionOptions options;
  std::unique_ptr<Session> session;
  BenchRow row;
};

/// Twice what the codec promises of a Gaussian: it is applied to the contributions and to the sum. Of codecs that leave
/// out elements or factors, no more than everything may be missing, twice.
double error_bound(const Codec& codec) {
  if (codec.sparse() != nullptr || codec.low_rank() != nullptr) return 2;
  const std::string spec = codec.spec();
  const std::size_t plus = spec.find('+');
  const std::string name = spec.substr(plus == std::string::npos ? 0 : plus + 1);
  for (const BuiltinCodec& known : builtin_codecs())
    if (known.name == name.substr(0, name.find(':'))) return 2.2 * static_cast<double>(known.accuracy) + 1e-6;
  return 1e-6;
}

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const float x : values) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

/// Norm of the difference from the mean in fp64, over the norm that the mean has where buffers are independent.
double error_of(std::span<const float> result, int ranks) {
  double difference = 0, power = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double x = static_cast<double>(detail::gradient_like(rank, i));
      sum += x;
      power += x * x;
    }
    const double off = static_cast<double>(result[i]) - sum / ranks;
    difference += off * off;
  }
  return std::sqrt(difference) * ranks / std::sqrt(power);
}

/// The first all-reduce: what it makes of the data, and how many bytes it sends.
void examine(Subject& subject, std::span<float> buffer, const BenchOptions& options, bench::JointFigures& figures) {
  Session& session = *subject.session;
  detail::fill_like_gradient(buffer, session.rank());
  session.all_reduce(buffer);
  session.commit();
  BenchRow& row = subject.row;
  std::uint64_t sent = session.bucket_statistics(0).sent_bytes;
  if (session.rank() == 0 && options.plant == "bits") buffer[0] = -buffer[0];
  if (session.rank() == 0 && options.plant == "nan") buffer[0] = std::numeric_limits<float>::quiet_NaN();
  if (session.rank() == 0 && options.plant == "error") buffer[buffer.size() / 2] += 1.0f;
  if (session.rank() == 0 && options.plant == "bytes") ++sent;
  row.same_bits = figures.all_equal(hash_of(buffer));
  constexpr double kNoNumber = 1e9;  // what is not finite is above any bound
  const double error = error_of(buffer, session.size());
  row.error = figures.largest_seconds(std::isfinite(error) ? error : kNoNumber);
  row.error_bound = error_bound(subject.options.codec);
  row.wire_bytes = figures.largest(sent);
  row.frame_bytes = figures.largest(session.frame_bytes(0));
  const BucketLoad load = simulate(subject.options, session.parameters(), session.size(), 1, session.rank()).front();
  row.messages = figures.largest(static_cast<std::uint64_t>(std::llround(sent_by(load).messages)));
  if (subject.options.codec.sparse() != nullptr) return;
  // Of a ring the load is of the busiest rank, whichever that is.
  const BucketPlan& plan = session.bucket_plan(0);
  const auto planned = plan.algorithm == Algorithm::ring ? plan.wire_bytes(session.rank())
                                                         : static_cast<std::uint64_t>(sent_by(load).bytes);
  row.planned_bytes = figures.largest(planned);
  if (!figures.all_equal(sent == planned ? 1 : 0)) row.planned_bytes = std::max<std::uint64_t>(row.wire_bytes, 1) - 1;
}

void finish(Subject& subject, const bench::Contender& contender, const bench::Contender& exact, int ranks) {
  BenchRow& row = subject.row;
  row.seconds = bench::median(contender.seconds);
  row.low_seconds = bench::quantile(contender.seconds, 0.25);
  row.high_seconds = bench::quantile(contender.seconds, 0.75);
  const double exchanged = 2.0 * (ranks - 1) / ranks;
  row.algorithm_gb_per_s = 1e-9 * static_cast<double>(row.bytes) / row.seconds;
  row.bus_gb_per_s = row.algorithm_gb_per_s * exchanged;
  row.ratio =
      row.wire_bytes == 0 ? 0 : exchanged * static_cast<double>(row.bytes) / static_cast<double>(row.wire_bytes);
  row.speedup = bench::median_ratio(exact.seconds, contender.seconds);
}

std::vector<BenchRow> measure_together(const std::shared_ptr<Transport>& transport, const BenchOptions& options,
                                       std::uint64_t bytes, const std::vector<std::string>& codecs) {
  const std::size_t elements = std::max<std::uint64_t>(bytes / sizeof(float), 1);
  const Workspace gradient(elements * sizeof(float)), memory(elements * sizeof(float));
  const std::span<float> buffer(reinterpret_cast<float*>(memory.data()), elements);
  detail::fill_like_gradient({reinterpret_cast<float*>(gradient.data()), elements}, transport->rank());
  bench::JointFigures figures(*transport);
  std::vector<Subject> subjects;
  std::vector<bench::Contender> contenders;
  for (const std::string& codec : codecs) {
    Subject& subject = subjects.emplace_back(Subject{session_options(options, codec, *transport), nullptr, {}});
    subject.session = std::make_unique<Session>(transport, subject.options);
    subject.session->add("gradient", matrix_of(elements));
    subject.session->seal();
    subject.options.codec = subject.session->options().codec;  // of "auto": what it chose
    subject.options.hierarchy = subject.session->options().hierarchy;
    subject.row.bytes = elements * sizeof(float);
    subject.row.elements = elements;
    subject.row.codec = codec == subject.options.codec.spec() || codec != "auto"
                            ? codec
                            : codec + " (" + subject.options.codec.spec() + ")";
    examine(subject, buffer, options, figures);
    contenders.push_back({codec,
                          [session = subject.session.get(), buffer] {
                            session->all_reduce(buffer);
                            session->commit();
                          },
                          subject.row.wire_bytes,
                          {},
                          [&] { std::memcpy(memory.data(), gradient.data(), gradient.size()); }});
  }
  const double once = figures.largest_seconds([&] {
    const TimePoint began = Clock::now();
    contenders.front().run();
    return std::chrono::duration<double>(Clock::now() - began).count();
  }());
  const int repeats = static_cast<int>(std::clamp(kShortestRound / once, 1.0, 100.0));
  bench::measure(*transport, contenders, options.iterations, repeats, options.warm_up);
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    finish(subjects[i], contenders[i], contenders.front(), transport->size());
    rows.push_back(subjects[i].row);
  }
  return rows;
}

/// Without repetition, exact and what it is for buffers of 16 bits first, and with what they are made of: codecs of
/// values and of factors.
std::vector<Codec> with_what_they_need(const std::vector<std::string>& specs) {
  std::vector<std::string> all = {"exact", "bf16", "fp16"};
  all.insert(all.end(), specs.begin(), specs.end());
  std::vector<Codec> codecs;
  std::set<std::string> known;
  SessionOptions options;
  options.policy = {.rules = {}, .exact_by_default = {}};
  std::vector<std::vector<BucketLoad>> loads;
  for (const std::string& spec : all) {
    options.codec = parse_codec(spec);
    if (!known.insert(detail::cost_name(options.codec)).second) continue;
    codecs.push_back(options.codec);
    loads.push_back(simulate(options, {{.name = "matrix", .shape = {1024, 1024}}}, 2, 1));
  }
  for (Codec& codec : detail::codecs_beside(codecs, options, loads)) codecs.push_back(std::move(codec));
  return codecs;
}

}  // namespace

int place_on_cores(Transport& transport, bool pin) {
  const std::vector<int> node_of = detect_nodes(transport).node_of_rank;
  const auto me = static_cast<std::size_t>(transport.rank());
  const auto same_node = [&](std::size_t rank) { return node_of[rank] == node_of[me]; };
  std::size_t place = 0, beside = 0;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    place += same_node(rank) && rank < me ? 1 : 0;
    beside += same_node(rank) ? 1 : 0;
  }
  const std::vector<int> cores = bench::allowed_cores();
  const bool bound = pin && !cores.empty() && bench::pin_to_core(cores[place % cores.size()]);
  if (pin && !bound)
    std::cerr << "tightwire bench: rank " + std::to_string(me) + " cannot be bound to a core: " + std::strerror(errno) +
                     "\n";
  // Launchers may have bound ranks to cores already, so that each has its own of several.
  const std::uint64_t core = bound ? static_cast<std::uint64_t>(cores[place % cores.size()]) + 1 : 0;
  const std::vector<std::uint64_t> core_of = gather_values(transport, core);
  std::size_t sharing = 0;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) sharing += same_node(rank) && core_of[rank] == core ? 1 : 0;
  if (!bound) sharing = (beside + cores.size() - 1) / std::max<std::size_t>(cores.size(), 1);
  const std::vector<std::uint64_t> all = gather_values(transport, sharing);
  return static_cast<int>(*std::max_element(all.begin(), all.end()));
}

Calibration calibrate_job(const std::shared_ptr<Transport>& transport, const BenchOptions& options) {
  const std::vector<Codec> codecs = with_what_they_need(options.codecs);
  SessionOptions session;
  session.error_feedback = options.feedback;
  constexpr double kMostSeconds = 0.6;
  const std::vector<std::size_t> sizes = {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{4} << 20,
                                          std::size_t{25} << 20};
  return calibrate<Session>(transport, session, codecs, sizes, kMostSeconds, {.number = options.iterations});
}

CodecCosts costs_here(const std::vector<std::string>& specs) {
  const std::vector<Codec> codecs = with_what_they_need(specs);
  CodecCosts costs;
  local::run(2, [&](const std::shared_ptr<Transport>& transport) {
    constexpr double kMostSeconds = 10;
    constexpr int kRepeats = 5;
    const Calibration measured = calibrate<Session>(
        transport, {}, codecs, {std::size_t{1} << 20, std::size_t{16} << 20}, kMostSeconds, {.number = kRepeats});
    if (transport->rank() == 0) costs = measured.costs;
  });
  return costs;
}

SessionOptions session_options(const BenchOptions& options, const std::string& codec, Transport& transport) {
  SessionOptions session;
  if (options.over_nodes) session.hierarchy = Hierarchy::of_transport();
  set_codec(session, codec, transport.size());
  session.policy.exact_by_default = {};
  session.error_feedback = options.feedback;
  session.bucket_bytes = std::size_t{1} << 62;  // one bucket
  session.plan.algorithm = options.algorithm;
  return session;
}

std::vector<BenchRow> measure_size(const std::shared_ptr<Transport>& transport, const BenchOptions& options,
                                   std::uint64_t bytes) {
  std::vector<std::string> others;
  for (const std::string& codec : options.codecs)
    if (codec != "exact") others.push_back(codec);
  std::vector<std::vector<std::string>> groups;
  if (bytes <= kLargestTogether || others.empty())
    groups.push_back(others);
  else
    for (const std::string& codec : others) groups.push_back({codec});
  std::vector<BenchRow> rows;
  for (std::vector<std::string>& group : groups) {
    group.insert(group.begin(), "exact");
    const std::vector<BenchRow> measured = measure_together(transport, options, bytes, group);
    rows.insert(rows.end(), measured.begin() + (rows.empty() ? 0 : 1), measured.end());
  }
  return rows;
}

std::vector<std::string> failures_of(const BenchRow& row) {
  std::vector<std::string> failures;
  const std::string where = std::to_string(row.bytes) + " bytes, " + row.codec + ": ";
  if (!row.same_bits) failures.push_back(where + "ranks hold different bits");
  if (!(row.error <= row.error_bound))
    failures.push_back(where + "error " + std::to_string(row.error) + ", above the bound " +
                       std::to_string(row.error_bound));
  if (row.planned_bytes != 0 && row.planned_bytes != row.wire_bytes)
    failures.push_back(where + "sent " + std::to_string(row.wire_bytes) + " bytes, and the plan says " +
                       std::to_string(row.planned_bytes));
  return failures;
}

}  // namespace tightwire::tool
