// What it costs to find the k largest of n elements, against reading them once.
//
//   build/bin/selection_bench                             6.5 Mi elements, 0.1 % and 1 %
//   build/bin/selection_bench --elements 65000000 --ratio 0.01 --peers false
//
// All figures are ratios within one run on one thread: everything is timed in turn with one read of the data and with
// sums += gradient, of the same gradients in turn as `fused` but never the same one in a round, so that both find as
// little of them in the caches; the median of the ratios of all rounds is reported.
//
//   exact      choose the k largest of data that does not change, without a residual: 4 bytes per element
//   cold       the same without knowing the threshold of the last time
//   fused      data + residual, kept, and the k largest chosen: 12 bytes per element; gradients change from step to
//              step, and what was chosen leaves the residual, as in training
#include <algorithm>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <tightwire/core_codecs.hpp>
#include <tightwire/sparse/selection.hpp>

#include "memory.hpp"
#include "peer.hpp"
#include "roofline.hpp"

namespace {

using namespace bench;
using namespace tightwire;

struct Options {
  std::size_t elements = 6'815'744;
  std::vector<double> ratios = {0.001, 0.01};
  int rounds = 15;
  bool peers = true;
  std::string json;
};

/// Reads everything once, as fast as it goes.
struct Read {
  struct Job {
    const float* x;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static float run(const Job& job) {
    host::Lanes<float, W> sums[4] = {host::Lanes<float, W>(0.0f), host::Lanes<float, W>(0.0f),
                                     host::Lanes<float, W>(0.0f), host::Lanes<float, W>(0.0f)};
    for (std::size_t i = 0; i + 4 * W <= job.count; i += 4 * W) TIGHTWIRE_UNROLL(4)
    for (int k = 0; k < 4; ++k)
      sums[k] = sums[k] + host::Lanes<float, W>::load(job.x + i + static_cast<std::size_t>(k * W));
    const host::Lanes<float, W> sum = sums[0] + sums[1] + sums[2] + sums[3];
    return sum.v[0];
  }
};
volatile float sink;

void fill(float* x, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> bell;
  for (std::size_t i = 0; i < count; ++i) x[i] = bell(random);
}

void by_nth_element(const float* x, std::size_t count, std::size_t k, std::vector<std::uint32_t>& keys) {
  for (std::size_t i = 0; i < count; ++i) keys[i] = sparse::magnitude_key(x[i]);
  std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(k - 1), keys.end(), std::greater<>{});
}

std::vector<double> ratios(const std::vector<double>& times, const std::vector<double>& reference) {
  std::vector<double> all;
  for (std::size_t r = 0; r < times.size(); ++r) all.push_back(times[r] / reference[r]);
  return all;
}

nlohmann::json measure(const Options& options, double ratio) {
  const std::size_t n = options.elements;
  const auto k = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(n)));
  constexpr std::size_t kGradients = 6;
  std::vector<std::unique_ptr<Memory>> gradients;
  for (unsigned i = 0; i < kGradients; ++i) {
    gradients.push_back(std::make_unique<Memory>(4 * n, 64 * i));
    fill(gradients.back()->floats(), n, i + 1);
  }
  const Memory residual(4 * n, 1088), spare(4 * n, 2176), sums(4 * n, 1088);
  const float* const x = gradients[0]->floats();
  const host::Level level = host::level();

  std::vector<Subject> subjects = roofline(level, spare.floats(), x, n);
  subjects.push_back({"read", 4, 4, [&] { sink = host::run<Read>(level, {x, n}); }});
  const std::size_t read = subjects.size() - 1, add = read + 3, fused_at = read + 4;
  sparse::Selection warm, fused;
  const sparse::Source plain{x, ElementType::f32, n, 0, {}, {}};
  subjects.push_back({"exact", 4, 4, [&] { warm.choose({&plain, 1}, k, {}); }});
  subjects.push_back({"cold", 4, 4, [&] {
                        sparse::Selection cold;
                        cold.choose({&plain, 1}, k, {});
                      }});
  // Never the gradient that the other of the two has just brought into the caches.
  std::size_t step = 0, add_step = kGradients / 2;
  subjects.push_back({"sums += gradient", 12, 12, [&] {
                        roofline(level, sums.floats(), gradients[add_step++ % kGradients]->floats(), n)[kAdd].run();
                      }});
  subjects.push_back({"fused", 12, 12, [&] {
                        const sparse::Source source{gradients[step++ % kGradients]->floats(),
                                                    ElementType::f32,
                                                    n,
                                                    0,
                                                    {residual.floats(), residual.floats()},
                                                    {}};
                        fused.choose({&source, 1}, k, {});
                      }});
  std::vector<std::uint32_t> keys(n);
  if (options.peers) {
    subjects.push_back({"std::nth_element", 4, 4, [&] { by_nth_element(x, n, k, keys); }});
    if (const auto torch = torch_topk(x, n, k)) subjects.push_back({"torch.topk", 4, 4, *torch});
  }
  // In training the threshold has settled.
  for (int i = 0; i < 150; ++i) subjects[fused_at].run();
  const ForeignShare foreign;
  const Times times = time_rounds(subjects, options.rounds, 1e-3);

  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < subjects.size(); ++i)
    rows.push_back({{"name", subjects[i].name},
                    {"milliseconds", 1e3 * median(times[i])},
                    {"reads", median(ratios(times[i], times[read]))},
                    {"adds", median(ratios(times[i], times[add]))}});
  return {
      {"elements", n}, {"ratio", ratio}, {"k", k}, {"level", to_string(level)}, {"foreign_percent", foreign.percent()},
      {"rows", rows}};
}

void print(const nlohmann::json& result) {
  fmt::print("\n{} of {} elements, {}, {:.1f} % of the processors used by others\n", result["k"].get<std::size_t>(),
             result["elements"].get<std::size_t>(), result["level"].get<std::string>(),
             result["foreign_percent"].get<double>());
  fmt::print("{:20} {:>9} {:>12} {:>12}\n", "", "ms", "x one read", "x sums += g");
  for (const auto& row : result["rows"])
    fmt::print("{:20} {:9.2f} {:12.2f} {:12.2f}\n", row["name"].get<std::string>(), row["milliseconds"].get<double>(),
               row["reads"].get<double>(), row["adds"].get<double>());
  std::cout << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Selection of the largest elements against one read of all, on one thread.");
  app.add_option("--elements", options.elements, "of fp32");
  app.add_option("--ratio", options.ratios, "of the elements that are chosen");
  app.add_option("--rounds", options.rounds, "of which the median is taken");
  app.add_option("--peers", options.peers, "measure std::nth_element and torch.topk too");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json results = nlohmann::json::array();
  for (const double ratio : options.ratios) {
    results.push_back(measure(options, ratio));
    print(results.back());
  }
  if (!options.json.empty()) std::ofstream(options.json) << results.dump(2) << '\n';
  return 0;
}
