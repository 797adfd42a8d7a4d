// The emulation itself: mistakes that are planted are found, and sound kernels pass.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "planted_bugs.hpp"
#include "runtime/stream.hpp"
#include "schedules.hpp"

namespace cuda_emulation {
namespace {

/// What was found wrong with a kernel under a schedule; empty if nothing.
std::string found_in(const Planted& planted, const Schedule& schedule) {
  reset();
  use(schedule);
  constexpr std::size_t kBytes = kElements * sizeof(float);
  std::array<float, kElements> x{}, y{};
  for (int i = 0; i < kElements; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
  void *on_device_x = nullptr, *on_device_y = nullptr;
  EXPECT_EQ(cudaMalloc(&on_device_x, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&on_device_y, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(on_device_x, x.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
  planted.launch(static_cast<const float*>(on_device_x), static_cast<float*>(on_device_y), nullptr);
  std::string found;
  if (cudaDeviceSynchronize() != cudaSuccess ||
      cudaMemcpy(y.data(), on_device_y, kBytes, cudaMemcpyDeviceToHost) != cudaSuccess) {
    found = last_report();
    EXPECT_FALSE(found.empty()) << planted.name << ": an error without a report";
  }
  for (int i = 0; i < kElements && found.empty(); ++i)
    if (!(y[static_cast<std::size_t>(i)] == planted.expected(i))) found = "wrong result at " + std::to_string(i);
  reset();
  cudaFree(on_device_x);
  cudaFree(on_device_y);
  return found;
}

TEST(Emulation, SoundKernelsPassUnderEverySchedule) {
  ASSERT_FALSE(sound_kernels().empty());
  for (const Planted& planted : sound_kernels())
    for (const Schedule& schedule : kSchedules)
      EXPECT_EQ(found_in(planted, schedule), "") << planted.name << " " << schedule.name;
}

TEST(Emulation, EveryPlantedBugIsFound) {
  ASSERT_FALSE(faulty_kernels().empty());
  for (const Planted& planted : faulty_kernels()) {
    std::string found;
    for (const Schedule& schedule : kSchedules) {
      found = found_in(planted, schedule);
      if (!found.empty()) break;
    }
    EXPECT_NE(found, "") << planted.name;
  }
}

/// The kernel is named, and the memory, and how far beyond it lies.
TEST(Emulation, ReportsSayWhatAndWhere) {
  for (const Planted& planted : faulty_kernels()) {
    if (planted.name != "writes_past_the_tail") continue;
    const std::string found = found_in(planted, kSchedules[0]);
    EXPECT_NE(found.find("write out of bounds: 4 bytes, 0 bytes past the end of device allocation"), std::string::npos)
        << found;
    EXPECT_NE(found.find("writes_past_the_tail"), std::string::npos) << found;
    return;
  }
  FAIL() << "no such kernel";
}

TEST(Emulation, AFailedKernelMakesEveryLaterCallFail) {
  reset();
  set_sticky_error(cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
  reset();
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

/// So that who forgets to wait sees what was there before.
TEST(Emulation, WorkIsDoneWhenSomethingWaitsForIt) {
  reset();
  cudaStream_t one = nullptr, other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  int order = 0, first = 0;
  const auto note = [](void* place) { *static_cast<int*>(place) += 1; };
  ASSERT_EQ(cudaLaunchHostFunc(one, note, &first), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, one), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(other, note, &order), cudaSuccess);
  EXPECT_EQ(first + order, 0);
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(first, 1) << "the event comes first";
  EXPECT_EQ(order, 1);
}

TEST(Emulation, WorkThatNeverBecomesPossibleIsCalledADeadlock) {
  reset();
  options().patience_ms = 50;
  enqueue(nullptr, "a message that nobody sends", [] { return false; });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
  EXPECT_NE(last_report().find("a message that nobody sends"), std::string::npos) << last_report();
  options().patience_ms = 3000;
  reset();
}

using EmulationDeathTest = ::testing::Test;
TEST(EmulationDeathTest, HostCodeThatTouchesDeviceMemoryIsStopped) {
  reset();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  EXPECT_DEATH(static_cast<volatile char*>(memory)[3] = 1, "host code touched .*3 bytes into device allocation");
  cudaFree(memory);
}

TEST(Emulation, CopiesThatAreTooLongOrTheWrongWayAreRefused) {
  reset();
  void* memory = nullptr;
  char host[128] = {};
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory, host, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  reset();
  cudaFree(memory);
}

}  // namespace
}  // namespace cuda_emulation
