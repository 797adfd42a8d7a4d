#include "execution.hpp"
#include "schedules.hpp"

namespace tightwire::testing {

std::vector<std::string> schedules() {
  std::vector<std::string> names;
  for (const cuda_emulation::Schedule& schedule : cuda_emulation::kSchedules) names.emplace_back(schedule.name);
  return names;
}
void use_schedule(std::size_t number) {
  cuda_emulation::reset();
  cuda_emulation::use(cuda_emulation::kSchedules[number]);
}
std::string why_not_here() { return ""; }
bool must_run_here() { return true; }

}  // namespace tightwire::testing
