#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/transport.hpp>

namespace bench {

/// One way of doing the work, measured round by round beside the others.
struct Contender {
  std::string name;
  std::function<void()> run;
  std::uint64_t wire_bytes = 0;  ///< sent per call by this rank; 0: unknown
  std::vector<double> seconds;   ///< per round: of the slowest rank
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Median of the ratios a/b of the same rounds: what machine noise that lasts longer than a round does not touch.
inline double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

/// Runs every contender once per round, all ranks starting together; the first round warms up and does not count.
inline void measure(tightwire::Transport& transport, std::vector<Contender>& contenders, int rounds, int repeats) {
  for (int round = -1; round < rounds; ++round)
    for (Contender& contender : contenders) {
      tightwire::gather_values(transport, 0);
      const auto began = tightwire::Clock::now();
      for (int i = 0; i < repeats; ++i) contender.run();
      const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(tightwire::Clock::now() - began).count();
      const auto all = tightwire::gather_values(transport, static_cast<std::uint64_t>(took));
      const double slowest = static_cast<double>(*std::max_element(all.begin(), all.end())) * 1e-9;
      if (round >= 0) contender.seconds.push_back(slowest / repeats);
    }
}

/// CPU time that other processes took on this machine between two looks, as a share of all cores. Above a twentieth,
/// figures are noise.
class ForeignLoad {
 public:
  ForeignLoad();
  /// `own_seconds`: CPU time that all ranks together used since construction.
  double share(double own_seconds) const;

 private:
  double busy_;
  double total_;
};

/// CPU seconds this process has used.
double own_cpu_seconds();
/// Keeps this process on one core.
void pin_to_core(int core);

}  // namespace bench
