#include "rounds.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

namespace bench {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double timed_s(const Subject& subject, int times) {
  const double start = now_s();
  for (int i = 0; i < times; ++i) subject.run();
  return (now_s() - start) / times;
}

struct CpuTime {
  double busy_s = 0, total_s = 0;
};
CpuTime machine_time() {
  std::ifstream stat("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, io = 0, irq = 0, soft_irq = 0, steal = 0;
  stat >> name >> user >> nice >> system >> idle >> io >> irq >> soft_irq >> steal;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const double busy = user + nice + system + irq + soft_irq + steal;
  return {busy / ticks, (busy + idle + io) / ticks};
}
double own_time_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

Times time_rounds(const std::vector<Subject>& subjects, int rounds, double slice_s) {
  std::vector<int> repeats;
  for (const Subject& subject : subjects) {
    timed_s(subject, 1);
    const double once_s = std::max(1e-9, std::min(timed_s(subject, 1), timed_s(subject, 1)));
    repeats.push_back(std::max(1, static_cast<int>(slice_s / once_s)));
  }
  Times times(subjects.size());
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < subjects.size(); ++i) times[i].push_back(timed_s(subjects[i], repeats[i]));
  return times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ForeignShare::ForeignShare() : own_s_(own_time_s()) {
  const CpuTime start = machine_time();
  busy_s_ = start.busy_s;
  total_s_ = start.total_s;
}
double ForeignShare::percent() const {
  const CpuTime end = machine_time();
  const double foreign_s = std::max(0.0, end.busy_s - busy_s_ - (own_time_s() - own_s_));
  return 100 * foreign_s / std::max(1e-9, end.total_s - total_s_);
}

}  // namespace bench
