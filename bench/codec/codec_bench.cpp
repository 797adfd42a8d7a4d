// How near the loops of the codecs are to what one core can move through memory.
//
//   build/bin/codec_bench                         table for 64 KiB (cache), 25 MiB and 256 MiB of fp32
//   build/bin/codec_bench --json codec.json       the same figures as JSON
//   build/bin/codec_bench --mib 25 --codec int8 --type bf16 --level avx2
//
// Take figures on a quiet machine: the share of the processors that others took is printed, and a run with more than 5
// % says little. All figures are ratios within one run: every verb is timed in turn with a copy, x *= c and x += y, and
// the median of the ratios of all rounds is reported.
//
//   GB/s      of the gradient buffer: elements * bytes per element / time
//   x memcpy  bytes that the verb must read and write once each, against those of memcpy (8 per element), per time
//   of bus    those bytes plus what a cache reads of lines that are only written, against the better of x *= c (8 bytes
//             per element) and x += y (12). Says something out of cache alone
//   of x += y the same against x += y alone: of both the one that has about as many reads to a write as encoding with
//             feedback, where reads are what a core can have too few of under way
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <tightwire/core_codecs.hpp>

#include "roofline.hpp"
#include "subjects.hpp"

namespace {

using namespace bench;
using namespace tightwire;

struct Options {
  std::vector<double> mib = {0.0625, 25, 256};
  std::vector<std::string> codecs = {"int8", "int4", "dense", "bf16"};
  std::string type = "fp32";
  std::string level;
  int rounds = 0;
  std::string json;
};

ElementType element_type(const std::string& name) {
  for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16})
    if (name == to_string(type)) return type;
  throw Error(Errc::invalid_argument, "--type: \"" + name + "\" is none of fp32, bf16, fp16");
}
host::Level cpu_level(const std::string& name) {
  if (name.empty()) return host::level();
  for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512})
    if (name == to_string(level) && level <= host::supported_level()) return level;
  throw Error(Errc::invalid_argument, "--level: this CPU has no \"" + name + "\"");
}

std::shared_ptr<const Coder> coder_of(const std::string& name, host::Level level) {
  for (const BuiltinCodec& codec : builtin_codecs())
    if (name == codec.name) return codec.make({}, level);
  throw Error(Errc::invalid_argument, "--codec: \"" + name + "\" is not known");
}

/// The encoded bytes are those of the plainest instruction set, so that what is timed is known to be right.
void check(const Coder& coder, const std::string& name, const Buffers& buffers) {
  const std::size_t bytes = coder.wire_bytes(buffers.count);
  coder.encode(buffers.type, {buffers.data.bytes(), {}, buffers.count, buffers.wire.bytes()});
  coder_of(name, host::Level::baseline)
      ->encode(buffers.type, {buffers.data.bytes(), {}, buffers.count, buffers.sum.bytes()});
  if (std::memcmp(buffers.wire.bytes(), buffers.sum.bytes(), bytes) != 0)
    throw Error(Errc::internal, name + ": encoded bytes differ from those of the baseline instruction set");
}

std::vector<double> ratios(const std::vector<double>& times, double bytes, const std::vector<double>& reference_times,
                           double reference_bytes) {
  std::vector<double> all;
  for (std::size_t r = 0; r < times.size(); ++r) all.push_back(bytes / times[r] * reference_times[r] / reference_bytes);
  return all;
}

nlohmann::json measure(const Options& options, double mib) {
  const ElementType type = element_type(options.type);
  const host::Level level = cpu_level(options.level);
  const auto count = static_cast<std::size_t>(mib * 1048576 / 4) / 4096 * 4096;
  const Buffers buffers(count, type);
  std::vector<Subject> subjects = roofline(level, buffers.out.floats(), buffers.scratch.floats(), count);
  subjects.push_back(
      moves_of_encoding(level, buffers.out.floats(), buffers.scratch.floats(), buffers.wire.bytes(), count));
  const std::size_t plain = subjects.size();
  for (const std::string& name : options.codecs) {
    const auto coder = coder_of(name, level);
    check(*coder, name, buffers);
    for (Subject& subject : subjects_of(coder, buffers)) subjects.push_back(std::move(subject));
  }
  const int rounds = options.rounds > 0 ? options.rounds : mib > 100 ? 9 : 25;
  const ForeignShare foreign;
  const Times times = time_rounds(subjects, rounds, 1e-3);
  const double share = foreign.percent();

  const double n = static_cast<double>(count);
  std::vector<double> roofline_bytes_per_s;
  for (int r = 0; r < rounds; ++r)
    roofline_bytes_per_s.push_back(std::max(8 * n / times[kScale][static_cast<std::size_t>(r)],
                                            12 * n / times[kAdd][static_cast<std::size_t>(r)]));
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const Subject& subject = subjects[i];
    std::vector<double> of_bus, of_add;
    for (std::size_t r = 0; r < times[i].size(); ++r) {
      of_bus.push_back(subject.bus_bytes * n / times[i][r] / roofline_bytes_per_s[r]);
      of_add.push_back(subject.bus_bytes / 12 * times[kAdd][r] / times[i][r]);
    }
    rows.push_back(
        {{"name", subject.name},
         {"buffer_gb_per_s", 1e-9 * n * static_cast<double>(i >= plain ? element_bytes(type) : 4) / median(times[i])},
         {"best_gb_per_s", 1e-9 * n * static_cast<double>(i >= plain ? element_bytes(type) : 4) /
                               *std::min_element(times[i].begin(), times[i].end())},
         {"x_memcpy", median(ratios(times[i], subject.essential_bytes, times[kCopy], subjects[kCopy].essential_bytes))},
         {"of_bus", median(of_bus)},
         {"of_add", median(of_add)}});
  }
  return {{"fp32_mib", mib},
          {"elements", count},
          {"element_type", options.type},
          {"level", to_string(level)},
          {"rounds", rounds},
          {"foreign_percent", share},
          {"rows", rows}};
}

void print(const nlohmann::json& size) {
  fmt::print("\n{:g} MiB of fp32 ({} elements), {} buffers, {}, {} rounds, {:.1f} % of the processors used by others\n",
             size["fp32_mib"].get<double>(), size["elements"].get<std::size_t>(),
             size["element_type"].get<std::string>(), size["level"].get<std::string>(), size["rounds"].get<int>(),
             size["foreign_percent"].get<double>());
  fmt::print("{:44} {:>8} {:>8} {:>9} {:>7} {:>9}\n", "", "GB/s", "best", "x memcpy", "of bus", "of x += y");
  for (const auto& row : size["rows"])
    fmt::print("{:44} {:8.1f} {:8.1f} {:9.2f} {:7.2f} {:9.2f}\n", row["name"].get<std::string>(),
               row["buffer_gb_per_s"].get<double>(), row["best_gb_per_s"].get<double>(), row["x_memcpy"].get<double>(),
               row["of_bus"].get<double>(), row["of_add"].get<double>());
  std::cout << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Codec verbs against the memory bus, on one thread.");
  app.add_option("--mib", options.mib, "sizes, as MiB of fp32");
  app.add_option("--codec", options.codecs, "names of codecs");
  app.add_option("--type", options.type, "of the gradient buffer: fp32, bf16, fp16");
  app.add_option("--level", options.level, "instruction set: baseline, avx2, avx512");
  app.add_option("--rounds", options.rounds, "0: as many as the size calls for");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  try {
    nlohmann::json sizes = nlohmann::json::array();
    for (const double mib : options.mib) {
      sizes.push_back(measure(options, mib));
      print(sizes.back());
    }
    if (!options.json.empty()) std::ofstream(options.json) << sizes.dump(2) << '\n';
  } catch (const std::exception& error) {
    fmt::print(stderr, "codec_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
