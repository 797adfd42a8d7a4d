// The verbs of the codecs under Google Benchmark: in cache and out of it, on one thread and on two, each on buffers of
// its own, as a share of memcpy with the same bytes moved.
//
//   build/release/bin/codec_benchmark --benchmark_filter='memcpy|int8 encode' --benchmark_repetitions=5
//   build/release/bin/codec_benchmark --codec int4 --codec fp8-e4m3 --mib 25 --benchmark_out=codecs.json
//
// fp32_GB/s   of the gradient, all threads together
// bytes/s     that must be read and written once each
// of_memcpy   those against memcpy's in the same run, at the same size on as many threads
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_codecs.hpp>

#include "roofline.hpp"
#include "subjects.hpp"

namespace {

using namespace bench;
using namespace tightwire;

constexpr int kMostThreads = 2;

/// What one thread works on.
struct Desk {
  std::unique_ptr<Buffers> buffers;
  std::vector<Subject> subjects;  ///< memcpy first
};

Desk desk(std::size_t count, const std::vector<std::string>& codecs) {
  Desk desk{std::make_unique<Buffers>(count, ElementType::f32), {}};
  desk.subjects = {roofline(host::level(), desk.buffers->out.floats(), desk.buffers->scratch.floats(), count)[kCopy]};
  for (const std::string& codec : codecs)
    for (Subject& subject : subjects_of(parse_codec(codec).coder(ElementType::f32), *desk.buffers))
      desk.subjects.push_back(std::move(subject));
  return desk;
}

/// Bytes per second of memcpy, by elements and threads. It runs before the others.
std::map<std::pair<std::size_t, int>, double> memcpy_rate;

void run(benchmark::State& state, const std::vector<Desk>& desks, std::size_t which) {
  const Desk& mine = desks[static_cast<std::size_t>(state.thread_index())];
  const Subject& subject = mine.subjects[which];
  const double count = static_cast<double>(mine.buffers->count), bytes = subject.essential_bytes * count;
  subject.run();
  double seconds = 0;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    const auto began = std::chrono::steady_clock::now();
    subject.run();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  const double runs = static_cast<double>(state.iterations()), rate = bytes * runs / seconds;
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes * runs));
  state.counters["fp32_GB/s"] = 4e-9 * count * runs / seconds;
  const std::pair key(mine.buffers->count, state.threads());
  if (which == 0 && state.thread_index() == 0) memcpy_rate[key] = rate;
  const auto reference = memcpy_rate.find(key);  // not there if a filter left memcpy out
  if (which != 0 && reference != memcpy_rate.end())
    state.counters["of_memcpy"] = benchmark::Counter(rate / reference->second, benchmark::Counter::kAvgThreads);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<std::string> codecs = {"int8", "int4", "fp8-e4m3"};
  std::vector<double> mib = {0.0625, 25};
  CLI::App app("Codec verbs as a share of memcpy; all --benchmark_... options of Google Benchmark are known too.");
  app.add_option("--codec", codecs, "specifications of codecs");
  app.add_option("--mib", mib, "sizes, as MiB of fp32");
  CLI11_PARSE(app, argc, argv);

  std::vector<std::vector<Desk>> sizes;
  try {
    for (const double size : mib) {
      auto& desks = sizes.emplace_back();
      const auto count = std::max<std::size_t>(4096, static_cast<std::size_t>(size * 262144) / 4096 * 4096);
      for (int thread = 0; thread < kMostThreads; ++thread) desks.push_back(desk(count, codecs));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codec_benchmark: %s\n", error.what());
    return 1;
  }
  for (std::size_t size = 0; size < sizes.size(); ++size)
    for (int threads = 1; threads <= kMostThreads; ++threads)
      for (std::size_t which = 0; which < sizes[size].front().subjects.size(); ++which)
        benchmark::RegisterBenchmark(
            (sizes[size].front().subjects[which].name + "/" + std::to_string(mib[size]) + " MiB").c_str(),
            [&desks = sizes[size], which](benchmark::State& state) { run(state, desks, which); })
            ->Threads(threads)
            ->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
