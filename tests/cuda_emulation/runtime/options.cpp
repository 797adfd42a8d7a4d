#include "options.hpp"

#include <atomic>
#include <mutex>

#include "stream.hpp"

namespace cuda_emulation {
namespace {

std::mutex report_mutex;
std::string reported;
std::atomic<int> sticky = cudaSuccess;
std::atomic<std::uint64_t> counts[3];
std::atomic<std::size_t> held = 0;

}  // namespace

Options& options() {
  static Options options;
  return options;
}

std::string last_report() {
  const std::lock_guard lock(report_mutex);
  return reported;
}
void report(const std::string& text) {
  const std::lock_guard lock(report_mutex);
  reported = text;
}

cudaError_t sticky_error() { return static_cast<cudaError_t>(sticky.load()); }
void set_sticky_error(cudaError_t error) {
  int none = cudaSuccess;
  sticky.compare_exchange_strong(none, error);
}

Calls calls() { return {counts[0], counts[1], counts[2]}; }
void count(Call call) { ++counts[static_cast<std::size_t>(call)]; }
void hold_copies(std::size_t bytes) { held = bytes; }
bool is_held(std::size_t bytes) { return held != 0 && held == bytes; }

void reset() {
  drop_pending_work();
  sticky = cudaSuccess;
  report("");
}

}  // namespace cuda_emulation
