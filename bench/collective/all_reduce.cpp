/// All-reduce beside its peers, in one run: every rank runs each contender once per round, figures are medians over
/// rounds of the slowest rank's time, ratios are medians of the ratios of the same rounds.
///
///   mpirun -np 2 --bind-to core all_reduce            beside Open MPI and memcpy, over what UCX chooses
///   tightwire run -n 2 -- all_reduce --link-mbit 1000 beside the wire's own bound
///   tightwire run -n 2 -- all_reduce --telemetry /tmp beside the same Session, watched
#include <CLI/CLI.hpp>

#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include <fmt/core.h>
#include <tightwire/telemetry.hpp>
#include <tightwire/tightwire.hpp>

#include "measurement.hpp"
#include "peer.hpp"

namespace {

using tightwire::Workspace;

struct Options {
  std::vector<double> sizes_mib = {0.00390625, 0.0625, 1, 4, 25, 100};
  std::vector<std::string> codecs = {"exact", "int8", "int4"};
  bool feedback = true;
  bool rollback = true;
  int rounds = 15;
  double link_mbit = 0;
  bool pin = true;
  bool nodes = false;
  std::size_t share_elements = tightwire::PlanOptions{}.share_elements;
  bool json = false;
  std::string transport;
  int buckets = 1;
  std::string telemetry;  ///< folder of its files; empty: nobody watches
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app{"All-reduce beside memcpy and Open MPI, as ratios in one run"};
  app.add_option("--sizes", options.sizes_mib, "gradient sizes in MiB of fp32")->delimiter(',');
  app.add_option("--codecs", options.codecs, "codecs of the Session: exact, int4:block=32, topk:ratio=0.01");
  app.add_flag("!--no-feedback", options.feedback, "without error feedback");
  app.add_flag("!--no-rollback", options.rollback, "residuals in place, one copy");
  app.add_option("--rounds", options.rounds, "rounds that count")->check(CLI::Range(3, 1000));
  app.add_option("--link-mbit", options.link_mbit, "rate of the link in Mbit/s: compare with the time its bytes need");
  app.add_option("--share-elements", options.share_elements, "PlanOptions::share_elements");
  app.add_flag("--nodes", options.nodes,
               "every codec also over nodes, as the transport sees them: see network.sh --per-node");
  app.add_flag("!--no-pin", options.pin, "do not bind ranks to cores");
  app.add_option("--transport", options.transport, "shm, mixed or ucx; auto: what fits, or TIGHTWIRE_TRANSPORT");
  app.add_option("--buckets", options.buckets, "buckets that a gradient is cut into")->check(CLI::Range(1, 10000));
  app.add_option(
         "--telemetry", options.telemetry,
         "every codec also once more as it is, which shows the noise, with Telemetry that writes all its files, in "
         "this folder, and with one that samples every step, where by default it does one of 50")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--json", options.json, "one JSON object per size instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

Workspace gradient(std::size_t count, int rank) {
  Workspace memory(count * sizeof(float));
  tightwire::detail::fill_like_gradient({reinterpret_cast<float*>(memory.data()), count}, rank);
  return memory;
}

/// Time the bytes of a plain all-reduce of `bytes` per rank need on the link.
double link_seconds(double bytes_sent, double link_mbit) { return bytes_sent * 8 / (link_mbit * 1e6); }

struct Bench {
  const Options& options;
  std::shared_ptr<tightwire::Transport> transport;
  bench::Peer* peer;

  void run_size(double mib) {
    const auto count = static_cast<std::size_t>(mib * 1024 * 1024 / sizeof(float));
    const Workspace input = gradient(count, transport->rank());
    const Workspace output(count * sizeof(float));
    const auto* in = reinterpret_cast<const float*>(input.data());
    auto* out = reinterpret_cast<float*>(output.data());

    std::vector<bench::Contender> contenders;
    contenders.push_back({"memcpy", [&] { std::memcpy(out, in, count * sizeof(float)); }, 0, {}});
    if (peer != nullptr) contenders.push_back({peer->name(), [&] { peer->all_reduce(in, out, count); }, 0, {}});

    std::vector<std::unique_ptr<tightwire::Session>> sessions;
    std::vector<Workspace> buffers;
    const std::vector<Kind> kinds = kinds_of_sessions();
    buffers.reserve(kinds.size() * options.codecs.size());
    for (const std::string& codec : options.codecs)
      for (const Kind& kind : kinds) {
        auto& session = sessions.emplace_back(open_session(codec, kind, count));
        auto* data = reinterpret_cast<float*>(buffers.emplace_back(gradient(count, transport->rank())).data());
        contenders.push_back({codec + kind.suffix,
                              [&session = *session, data, count] {
                                session.all_reduce(std::span<float>(data, count));
                                session.commit();
                              },
                              0,
                              {},
                              [data, in, count] { std::memcpy(data, in, count * sizeof(float)); }});
      }

    const bench::ForeignLoad load;
    const double cpu = bench::own_cpu_seconds();
    bench::measure(*transport, contenders, options.rounds, mib < 0.5 ? 20 : 1);
    const auto used =
        tightwire::gather_values(*transport, static_cast<std::uint64_t>((bench::own_cpu_seconds() - cpu) * 1e6));
    double own = 0;
    for (const std::uint64_t microseconds : used) own += static_cast<double>(microseconds) * 1e-6;
    for (std::size_t i = 0; i < sessions.size(); ++i)
      contenders[contenders.size() - sessions.size() + i].wire_bytes = sessions[i]->last_step().sent_bytes;
    if (transport->rank() == 0) report(mib, contenders, load.share(own));
  }

  /// What a codec's Session is measured as.
  struct Kind {
    const char* suffix = "";
    bool over_nodes = false;
    bool watched = false;
    std::uint64_t sample_every = 0;
  };
  std::vector<Kind> kinds_of_sessions() const {
    std::vector<Kind> kinds = {{}};
    if (options.nodes) kinds.push_back({" over nodes", true, false});
    if (!options.telemetry.empty()) {
      kinds.push_back({" again", false, false});
      kinds.push_back({" watched", false, true, 0});
      kinds.push_back({" sampled", false, true, 1});
    }
    return kinds;
  }

  std::unique_ptr<tightwire::Session> open_session(const std::string& codec, const Kind& kind,
                                                   std::size_t count) const {
    tightwire::SessionOptions session_options;
    session_options.codec = tightwire::parse_codec(codec);
    session_options.policy.exact_by_default = {};
    session_options.error_feedback = options.feedback;
    session_options.rollback = options.rollback;
    session_options.bucket_bytes = 1;  // one bucket for each of the parameters
    session_options.plan.share_elements = options.share_elements;
    if (kind.over_nodes) session_options.hierarchy = tightwire::detect_nodes(*transport);
    if (kind.watched) {
      const std::string file =
          options.telemetry + "/all_reduce_bench-" + std::to_string(count) + codec + kind.suffix + "-{rank}";
      session_options.observer = std::make_shared<tightwire::Telemetry>(
          tightwire::TelemetryOptions{.json_lines = file + ".jsonl",
                                      .prometheus = file + ".prom",
                                      .trace = file + ".json",
                                      .log = [](const std::string&) {},  // that this step is nothing but communication
                                      .sample_every = kind.sample_every});
    }
    auto session = std::make_unique<tightwire::Session>(transport, session_options);
    const auto buckets = static_cast<std::size_t>(options.buckets);
    for (std::size_t b = 0; b < buckets; ++b)
      session->add("gradient" + std::to_string(b),
                   tightwire::matrix_of(count * (b + 1) / buckets - count * b / buckets));
    session->seal();
    return session;
  }

  void report(double mib, const std::vector<bench::Contender>& contenders, double foreign) const {
    const double bytes = mib * 1024 * 1024;
    const double exact_bytes = 2.0 * (transport->size() - 1) / transport->size() * bytes;
    const bench::Contender& copy = contenders[0];
    const bench::Contender* against = peer != nullptr ? &contenders[1] : nullptr;
    const auto exact =
        std::find_if(contenders.begin(), contenders.end(), [](const auto& c) { return c.name == "exact"; });
    const bench::Contender* unwatched = nullptr;
    nlohmann::json rows = nlohmann::json::array();
    if (!options.json)
      fmt::print(
          "\n{:.4g} MiB fp32, {} ranks, {}, other load {:.1f} %\n{:<24}{:>12}{:>12}{:>10}{:>12}{:>12}{:>12}{:>14}\n",
          mib, transport->size(), transport->describe(), 100 * foreign, "", "median us", "best us", "x memcpy",
          peer != nullptr ? "vs Open MPI" : "", "vs exact", options.link_mbit > 0 ? "x wire" : "",
          options.telemetry.empty() ? "" : "x unwatched");
    for (const bench::Contender& c : contenders) {
      const double sent = c.wire_bytes != 0 ? static_cast<double>(c.wire_bytes) : exact_bytes;
      nlohmann::json row = {{"name", c.name},
                            {"median_us", 1e6 * bench::median(c.seconds)},
                            {"best_us", 1e6 * *std::min_element(c.seconds.begin(), c.seconds.end())},
                            {"times_memcpy", bench::median_ratio(c.seconds, copy.seconds)}};
      if (c.wire_bytes != 0) row["sent_bytes"] = c.wire_bytes;
      if (against != nullptr) row["speedup_over_open_mpi"] = bench::median_ratio(against->seconds, c.seconds);
      if (exact != contenders.end()) row["speedup_over_exact"] = bench::median_ratio(exact->seconds, c.seconds);
      const bool compared = c.name.ends_with(" again") || c.name.ends_with(" watched") || c.name.ends_with(" sampled");
      if (compared && unwatched != nullptr)
        row["times_unwatched"] = bench::median_ratio(c.seconds, unwatched->seconds);
      else
        unwatched = &c;
      if (options.link_mbit > 0 && &c != &copy)
        row["times_wire_bound"] = bench::median(c.seconds) / link_seconds(sent, options.link_mbit);
      if (!options.json) print_row(row);
      rows.push_back(std::move(row));
    }
    if (options.json)
      std::cout << nlohmann::json{{"mib", mib},
                                  {"ranks", transport->size()},
                                  {"transport", transport->describe()},
                                  {"foreign_load", foreign},
                                  {"feedback", options.feedback},
                                  {"rollback", options.rollback},
                                  {"contenders", rows}}
                << '\n';
    std::cout << std::flush;
  }

  static void print_row(const nlohmann::json& row) {
    const auto cell = [&](const char* key, int digits) {
      return row.contains(key) ? fmt::format("{:.{}f}", row[key].get<double>(), digits) : std::string();
    };
    fmt::print("{:<24}{:>12}{:>12}{:>10}{:>12}{:>12}{:>12}{:>14}\n", row["name"].get<std::string>(),
               cell("median_us", 1), cell("best_us", 1), cell("times_memcpy", 2), cell("speedup_over_open_mpi", 2),
               cell("speedup_over_exact", 2), cell("times_wire_bound", 3), cell("times_unwatched", 4));
  }
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    const auto peer = bench::open_mpi();
    const std::shared_ptr<tightwire::Transport> transport =
        tightwire::open_transport(tightwire::rendezvous::environment(), options.transport);
    const std::vector<int> cores = bench::allowed_cores();
    const auto rank = static_cast<std::size_t>(transport->rank());
    if (options.pin && (cores.empty() || !bench::pin_to_core(cores[rank % cores.size()])))
      std::cerr << "all_reduce: rank " + std::to_string(rank) + " cannot be bound to a core\n";
    Bench bench{options, transport, peer.get()};
    for (const double mib : options.sizes_mib) bench.run_size(mib);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "all_reduce: " << error.what() << '\n';
    return 1;
  }
}
