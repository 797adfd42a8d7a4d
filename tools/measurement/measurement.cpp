#include "measurement.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace bench {
namespace {

struct CpuTime {
  double busy = 0;
  double total = 0;
};

CpuTime cpu_time() {
  std::ifstream stat("/proc/stat");
  std::string label;
  stat >> label;
  CpuTime time;
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  double value = 0;
  for (int field = 0; field < 8 && stat >> value; ++field) {
    time.total += value * tick;
    // What interrupts take for our own messages (fields 5 and 6) is on nobody's account.
    const bool of_processes = field < 3 || field == 7;
    if (of_processes) time.busy += value * tick;
  }
  return time;
}

}  // namespace

ForeignLoad::ForeignLoad() {
  const CpuTime now = cpu_time();
  busy_ = now.busy;
  total_ = now.total;
}

double ForeignLoad::share(double own_seconds) const {
  const CpuTime now = cpu_time();
  const double total = now.total - total_;
  // The system counts in ticks of 10 ms, and beside a short measurement ranks that just started still count for much.
  constexpr double kUnknown = 0.05;
  return total > 0 ? std::max(0.0, now.busy - busy_ - own_seconds - kUnknown) / total : 0;
}

double own_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  return cores;
}

bool pin_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace bench
