#include "bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/hierarchy_text.hpp>
#include <tightwire/open_transport.hpp>
#include <tightwire/rendezvous.hpp>

#include "bench_rows.hpp"
#include "calibration_file.hpp"
#include "launcher/launcher.hpp"
#include "measurement.hpp"
#include "run.hpp"

namespace tightwire::tool {
namespace {

std::vector<std::uint64_t> sizes_of(const BenchOptions& options) {
  std::vector<std::uint64_t> sizes;
  for (double bytes = static_cast<double>(options.from_bytes); bytes <= static_cast<double>(options.to_bytes) * 1.0001;
       bytes *= options.factor) {
    sizes.push_back(static_cast<std::uint64_t>(std::llround(bytes)) / sizeof(float) * sizeof(float));
    if (options.factor <= 1) break;
  }
  return sizes;
}

int measure_all(const std::shared_ptr<Transport>& transport, const BenchOptions& options, int ranks_per_core) {
  const bool tell = transport->rank() == 0;
  if (tell && options.csv) std::cout << csv_head();
  if (tell && !options.csv && !options.json) std::cout << table_head(*transport, options, ranks_per_core);
  int failed = 0;
  for (const std::uint64_t bytes : sizes_of(options))
    for (BenchRow& row : measure_size(transport, options, bytes)) {
      row.ranks_per_core = ranks_per_core;
      if (tell) std::cout << (options.json ? as_json(row) : options.csv ? as_csv(row) : as_table(row)) << std::flush;
      if (!options.check) continue;
      for (const std::string& failure : failures_of(row)) {
        ++failed;
        if (tell) std::cerr << "tightwire bench: " << failure << std::endl;
      }
    }
  if (tell && options.check && !options.json && !options.csv)
    std::cout << "# check: " << (failed == 0 ? "bits, errors and wire bytes are as they must be" : "failed") << '\n';
  if (!std::cout.flush()) throw Error(Errc::transport, "standard output cannot be written");
  return failed == 0 ? 0 : 1;
}

int overlap_all(const std::shared_ptr<Transport>& transport, const BenchOptions& options, int ranks_per_core) {
  const bool tell = transport->rank() == 0;
  if (tell && options.csv) std::cout << overlap_csv_head();
  if (tell && !options.csv && !options.json) std::cout << overlap_head(*transport, options, ranks_per_core);
  for (const std::uint64_t bytes : sizes_of(options))
    for (OverlapRow& row : measure_overlap(transport, options, bytes)) {
      row.ranks_per_core = ranks_per_core;
      if (tell) std::cout << (options.json ? as_json(row) : options.csv ? as_csv(row) : as_table(row)) << std::flush;
    }
  if (!std::cout.flush()) throw Error(Errc::transport, "standard output cannot be written");
  return 0;
}

int calibrate_all(const std::shared_ptr<Transport>& transport, const BenchOptions& options, int ranks_per_core) {
  Calibration calibration = calibrate_job(transport, options);
  if (transport->rank() != 0) return 0;
  calibration.ranks_per_core = ranks_per_core;
  write_calibration(options.calibrate, calibration, transport->describe());
  std::cout << as_text(calibration) << shared_cores_text(ranks_per_core) << "written to " << options.calibrate << '\n';
  if (!std::cout.flush()) throw Error(Errc::transport, "standard output cannot be written");
  return 0;
}

int run_as_rank(const BenchOptions& options, const Rendezvous& rendezvous) {
  const std::shared_ptr<Transport> transport = open_transport(rendezvous, options.transport);
  const int ranks_per_core = place_on_cores(*transport, options.pin);
  if (!options.calibrate.empty()) return calibrate_all(transport, options, ranks_per_core);
  return options.overlap_ms != 0 ? overlap_all(transport, options, ranks_per_core)
                                 : measure_all(transport, options, ranks_per_core);
}

/// This program again, with the same arguments, as ranks of a job on this machine.
int start_ranks(const BenchOptions& options, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  LaunchOptions job;
  job.ranks = options.ranks;
  job.command = std::move(arguments);
  job.report = [](const std::string& line) { std::cerr << "tightwire: " + line + "\n"; };
  return launch(job);
}

int run_bench(BenchOptions options, const std::vector<std::string>& arguments) {
  if (options.codecs.empty()) {
    options.codecs = kComparedCodecs;
    if (options.calibrate.empty()) options.codecs.resize(4);
  }
  const Rendezvous rendezvous = rendezvous::environment();
  const bool in_job = rendezvous.size > 1 || std::getenv("TIGHTWIRE_RANK") != nullptr;
  if (in_job && options.ranks != 0 && options.ranks != rendezvous.size)
    throw Error(Errc::invalid_argument, "-n asks for " + std::to_string(options.ranks) + " ranks in a job of " +
                                            std::to_string(rendezvous.size));
  SessionOptions ignored;
  for (const std::string& codec : options.codecs) set_codec(ignored, codec, 0);  // told once, before ranks start
  if (options.calibrate.empty() && options.from_bytes > options.to_bytes)
    throw Error(Errc::invalid_argument,
                "--from " + std::to_string(options.from_bytes) + " is above --to " + std::to_string(options.to_bytes));
  if (!in_job && options.ranks != 0) return start_ranks(options, arguments);
  return run_as_rank(options, rendezvous);
}

void add_options(CLI::App& bench, BenchOptions& options) {
  bench.add_option("-n,--ranks", options.ranks, "Start this many ranks here; none within mpirun, srun, tightwire run")
      ->check(CLI::Range(1, 4096));
  bench.add_option("-b,--from", options.from_bytes, "Smallest size of the fp32 gradient: 8, 64K, 1M")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 40))
      ->capture_default_str();
  bench.add_option("-e,--to", options.to_bytes, "Largest size")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 40))
      ->capture_default_str();
  bench.add_option("-f,--factor", options.factor, "From one size to the next")
      ->check(CLI::Range(1.1, 1e6))
      ->capture_default_str();
  bench.add_option("-c,--codecs", options.codecs,
                   "Codecs, separated by spaces, \"hier(inside=bf16, across=int4)\" too; exact is always there. By "
                   "default bf16 int8 "
                   "int4, and to calibrate all that plan compares; to calibrate, bf16 and fp16 are always there");
  bench.add_option("--transport", options.transport, "shm, mixed or ucx; auto: what fits, or TIGHTWIRE_TRANSPORT")
      ->check(CLI::IsMember({"auto", "shm", "mixed", "ucx"}));
  bench.add_option("--warm-up", options.warm_up, "Rounds that do not count")->check(CLI::Range(0, 100000));
  bench.add_option("--iterations", options.iterations, "Rounds that count")->check(CLI::Range(1, 100000));
  bench.add_flag("!--no-feedback", options.feedback, "Without error feedback");
  bench.add_flag("--over-nodes", options.over_nodes, "By levels: inside nodes exact, across them with the codec");
  std::map<std::string, Algorithm> algorithms;
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::two_shot, Algorithm::one_shot, Algorithm::ring, Algorithm::tree})
    algorithms[to_string(algorithm)] = algorithm;
  bench.add_option("--algorithm", options.algorithm, "Form of all codecs: ring is for 16 bits and more per element")
      ->transform(CLI::CheckedTransformer(algorithms));
  bench.add_flag("!--no-pin", options.pin, "Do not bind ranks to cores");
  auto* json = bench.add_flag("--json", options.json, "One JSON object per line");
  bench.add_flag("--csv", options.csv, "Comma-separated")->excludes(json);
  auto* check = bench.add_flag(
      "--check", options.check,
      "Fail where ranks hold different bits, an error is above its bound, or wire bytes are not the plan's");
  bench.add_option("--plant", options.plant, "To test --check: make this wrong on rank 0")
      ->check(CLI::IsMember({"bits", "error", "nan", "bytes"}));
  auto* calibrate =
      bench.add_option("--calibrate", options.calibrate, "Measure what links and codecs cost, for tightwire plan")
          ->type_name("FILE");
  auto* overlap =
      bench
          .add_option("--overlap", options.overlap_ms,
                      "Measure how much of the all-reduce hides behind computing: this long before each bucket is "
                      "started, from the last to the first; from 1M on by default")
          ->type_name("MS")
          ->check(CLI::Range(0.001, 1e6))
          ->excludes(check)
          ->excludes(calibrate);
  bench.add_option("--buckets", options.buckets, "Of --overlap, of equal size")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->needs(overlap);
  bench
      .add_flag("--on-cpu", options.overlap_on_cpu,
                "Of --overlap: compute on the rank's core, as if there were no device")
      ->needs(overlap);
}

}  // namespace

void add_bench(CLI::App& app, const std::vector<std::string>& arguments, int& status) {
  CLI::App* bench = app.add_subcommand("bench", "Measure all-reduce by size and codec between ranks");
  const auto options = std::make_shared<BenchOptions>();
  add_options(*bench, *options);
  bench->footer(
      "Examples: tightwire bench -n 4 --from 8 --to 256M --factor 2 --codecs exact int8 topk:ratio=0.01\n"
      "          mpirun -np 2 tightwire bench --check\n"
      "          tightwire bench -n 2 --overlap 2 --from 64M --to 64M\n"
      "          tightwire bench -n 2 --calibrate here.json");
  bench->callback([bench, options, &arguments, &status] {
    try {
      if (options->overlap_ms != 0 && bench->count("--from") == 0)
        options->from_bytes = std::min(std::uint64_t{1} << 20, options->to_bytes);
      status = run_bench(*options, arguments);
    } catch (const Error& error) {
      std::cerr << std::string("tightwire bench: ") + error.what() + "\n";
      status = error.code() == Errc::invalid_argument ? 2 : 1;
    }
  });
}

}  // namespace tightwire::tool
