#include <cstdlib>
#include <string_view>

#include <tightwire/cuda.hpp>

#include "execution.hpp"

namespace tightwire::testing {

std::vector<std::string> schedules() { return {"the device's own"}; }
void use_schedule(std::size_t) {}
std::string why_not_here() {
  const cuda::Devices devices = cuda::devices();
  return devices.count > 0 ? "" : devices.note;
}
bool must_run_here() {
  const char* required = std::getenv("TIGHTWIRE_REQUIRE_GPU");
  return required != nullptr && std::string_view(required) == "1";
}

}  // namespace tightwire::testing
