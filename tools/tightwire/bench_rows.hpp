#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/calibration.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::tool {

/// Codecs that are compared where none are named: by `plan`, which needs the costs of all of them, and by `bench`,
/// which measures those that are no matter of the model (the first four).
inline const std::vector<std::string> kComparedCodecs = {"exact",           "bf16",           "int8", "int4",
                                                         "topk:ratio=0.01", "powersgd:rank=4"};

struct BenchOptions {
  int ranks = 0;  ///< to start; 0: those of the job we are in
  std::uint64_t from_bytes = 8;
  std::uint64_t to_bytes = std::uint64_t{64} << 20;
  double factor = 4;
  std::vector<std::string> codecs;  ///< as many of kComparedCodecs as there are use for, where none are named
  int warm_up = 2;
  int iterations = 11;
  bool feedback = true;
  bool over_nodes = false;
  Algorithm algorithm = Algorithm::automatic;
  bool pin = true;
  bool json = false;
  bool csv = false;
  bool check = false;
  std::string plant;      ///< what to make wrong on rank 0: "", bits, error, nan, bytes
  std::string calibrate;  ///< file to write
  std::string transport;  ///< see open_transport.hpp
  double overlap_ms = 0;  ///< of computing before each bucket; 0: no overlap is measured
  int buckets = 8;        ///< of a step whose overlap is measured
  bool overlap_on_cpu = false;
};

/// One size with one codec. bench/METHOD.md defines the figures.
struct BenchRow {
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
  std::string codec;
  double seconds = 0, low_seconds = 0, high_seconds = 0;  ///< median and quartiles
  double algorithm_gb_per_s = 0, bus_gb_per_s = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t planned_bytes = 0;  ///< 0: depends on the gradients
  std::uint64_t messages = 0;       ///< sent by the rank that sends most
  std::uint64_t frame_bytes = 0;    ///< memory of the rank that has most
  double ratio = 0;
  double speedup = 0;
  double error = 0, error_bound = 0;
  bool same_bits = true;
  int ranks_per_core = 0;  ///< on the fullest core
};

/// How much of an all-reduce hides behind computing, of one size with one codec. bench/METHOD.md defines the figures.
struct OverlapRow {
  std::uint64_t bytes = 0;
  std::string codec;
  int buckets = 0;
  double compute_seconds = 0, reduce_seconds = 0, both_seconds = 0;  ///< medians
  double hidden = 0, low_hidden = 0, high_hidden = 0;                ///< median and quartiles
  double possible = 0;
  int ranks_per_core = 0;
};

/// What a Session is for these options.
SessionOptions session_options(const BenchOptions& options, const std::string& codec, Transport& transport);

/// All codecs at one size, one by one. Collective; figures are equal on all ranks.
std::vector<OverlapRow> measure_overlap(const std::shared_ptr<Transport>& transport, const BenchOptions& options,
                                        std::uint64_t bytes);

/// All codecs at one size. Collective; figures are equal on all ranks.
std::vector<BenchRow> measure_size(const std::shared_ptr<Transport>& transport, const BenchOptions& options,
                                   std::uint64_t bytes);

/// Links and codecs of a job: those named, exact with what it is for buffers of 16 bits, and what any of them is made
/// of. Collective.
Calibration calibrate_job(const std::shared_ptr<Transport>& transport, const BenchOptions& options);

/// Binds this rank to a core of its own, as far as its node has enough, and tells on standard error where that cannot
/// be. Returns how many ranks the fullest core of the job has. Collective.
int place_on_cores(Transport& transport, bool pin);

/// The same codecs on this CPU, between two ranks of this process.
CodecCosts costs_here(const std::vector<std::string>& codecs);

/// What `--check` finds wrong in a row, one line each.
std::vector<std::string> failures_of(const BenchRow& row);

std::string table_head(const Transport& transport, const BenchOptions& options, int ranks_per_core);
/// A line where ranks share cores, which makes figures those of ranks that wait for each other; else nothing.
std::string shared_cores_text(int ranks_per_core);
std::string as_table(const BenchRow& row);
std::string csv_head();
std::string as_csv(const BenchRow& row);
std::string as_json(const BenchRow& row);

std::string overlap_head(const Transport& transport, const BenchOptions& options, int ranks_per_core);
std::string as_table(const OverlapRow& row);
std::string overlap_csv_head();
std::string as_csv(const OverlapRow& row);
std::string as_json(const OverlapRow& row);

}  // namespace tightwire::tool
