#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <tightwire/link_measurement.hpp>
#include <tightwire/transport.hpp>

namespace bench {

/// One way of doing the work, measured round by round beside the others.
struct Contender {
  std::string name;
  std::function<void()> run;
  std::uint64_t wire_bytes = 0;        ///< sent per call by this rank; 0: unknown
  std::vector<double> seconds;         ///< per round: of the slowest rank
  std::function<void()> prepare = {};  ///< before each round, not timed
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

/// Value below which a part of all lies, from 0 to 1.
inline double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
}

/// Runs every contender `repeats` times per round, all ranks starting together; the first rounds warm up and do not
/// count.
inline void measure(tightwire::Transport& transport, std::vector<Contender>& contenders, int rounds, int repeats,
                    int warm_up = 1) {
  tightwire::JointClock clock(transport);
  for (int round = -warm_up; round < rounds; ++round)
    for (Contender& contender : contenders) {
      if (contender.prepare) contender.prepare();
      const double seconds = clock.seconds([&] {
        for (int i = 0; i < repeats; ++i) contender.run();
      });
      if (round >= 0) contender.seconds.push_back(seconds / repeats);
    }
}

/// Figures that all ranks have alike.
class JointFigures : public tightwire::JointClock {
 public:
  explicit JointFigures(tightwire::Transport& transport) : JointClock(transport) {}
  /// Whether every rank gave the same value.
  bool all_equal(std::uint64_t value) { return largest(value) == ~largest(~value); }
};

/// CPU time that other processes took on this machine between two looks, as a share of all cores. Above a twentieth,
/// figures are noise.
class ForeignLoad {
 public:
  ForeignLoad();
  /// `own_seconds`: CPU time that all ranks together used since construction. Below some 0.5 s little can be told, and
  /// up to 50 ms of others are not.
  double share(double own_seconds) const;

 private:
  double busy_;
  double total_;
};

/// CPU seconds this process has used.
double own_cpu_seconds();
/// Cores that this process may run on, ascending.
std::vector<int> allowed_cores();
/// Keeps this process on one core. Returns whether the system lets it.
[[nodiscard]] bool pin_to_core(int core);

}  // namespace bench
