// The C interface to Sessions on devices: what C gets is what Sessions on hosts have, bit for bit.
#include <tightwire/tightwire_device.h>

#include <string>
#include <vector>

#include "device_ranks.hpp"
#include "emulated.hpp"

namespace tightwire::nccl {

// In the place of transports/nccl/library.cpp.
std::shared_ptr<cuda::Transport> adopt(ncclComm* communicator, std::chrono::milliseconds timeout) {
  return adopt(communicator, timeout, cuda_emulation::nccl_double());
}
std::shared_ptr<cuda::Transport> open(const Rendezvous& rendezvous) {
  return open(rendezvous, cuda_emulation::nccl_double);
}

}  // namespace tightwire::nccl

namespace tightwire::testing::c_interface_test {
namespace {

constexpr std::size_t kCount = 64 * 48;
constexpr std::int64_t kShape[] = {64, 48};
constexpr const char* kSpecification = "int4:block=32 rule=exact.*=bf16 timeout=20";
constexpr int kSteps = 3;

void ok(tightwire_status status) {
  if (status != TIGHTWIRE_OK) throw Error(static_cast<Errc>(status), tightwire_last_error());
}
void fails(tightwire_status status, tightwire_status expected, const char* text) {
  EXPECT_EQ(status, expected) << tightwire_last_error();
  EXPECT_TRUE(contains(tightwire_last_error(), text)) << tightwire_last_error();
}

std::vector<float> gradient_of(int rank, int step) {
  std::vector<float> values(kCount);
  FastRandom random(static_cast<std::uint64_t>(10 * rank + step));
  for (float& value : values) value = random.bell();
  return values;
}

/// What every rank gets in every step, by Sessions on hosts; the last step after a restore of what `states` has.
class OnHosts {
 public:
  explicit OnHosts(int ranks) : communicators_(static_cast<std::size_t>(ranks)) {
    ok(tightwire_communicator_in_process(ranks, communicators_.data()));
  }
  ~OnHosts() {
    for (tightwire_communicator* each : communicators_) tightwire_communicator_close(each);
  }
  tightwire_communicator* communicator(int rank) const { return communicators_[static_cast<std::size_t>(rank)]; }

  std::vector<float> run(int rank, int first, int steps, const std::vector<std::byte>& state = {}) const {
    tightwire_session* session = nullptr;
    ok(tightwire_session_open(communicator(rank), kSpecification, &session));
    ok(tightwire_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, nullptr));
    ok(tightwire_session_seal(session));
    if (!state.empty()) ok(tightwire_session_restore(session, state.data(), state.size()));
    std::vector<float> results;
    for (int step = first; step < first + steps; ++step) {
      std::vector<float> gradient = gradient_of(rank, step);
      void* const data = gradient.data();
      ok(tightwire_session_all_reduce(session, &data, 1));
      ok(tightwire_session_commit(session, nullptr));
      results.insert(results.end(), gradient.begin(), gradient.end());
    }
    tightwire_session_close(session);
    return results;
  }

 private:
  std::vector<tightwire_communicator*> communicators_;
};

/// The same steps on a device, by start and wait; what was saved before the last one goes to `state`.
std::vector<float> run_on_device(tightwire_device_communicator* communicator, std::vector<std::byte>& state) {
  const int rank = tightwire_device_communicator_rank(communicator);
  tightwire_device_session* session = nullptr;
  ok(tightwire_device_session_open(communicator, kSpecification, &session));
  ok(tightwire_device_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, nullptr));
  ok(tightwire_device_session_seal(session));
  const Model model{{"weight", {64, 48}}};
  DeviceGradients on_device(model);
  void* const data = on_device.pointers()[0];
  const TestStream producer, consumer;
  std::vector<float> results;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - 1) {
      const void* bytes = nullptr;
      size_t size = 0;
      ok(tightwire_device_session_save(session, &bytes, &size));
      state.assign(static_cast<const std::byte*>(bytes), static_cast<const std::byte*>(bytes) + size);
    }
    std::vector<float> gradient = gradient_of(rank, step);
    must(cudaMemcpyAsync(data, gradient.data(), kCount * sizeof(float), cudaMemcpyHostToDevice, producer));
    ok(tightwire_device_session_start(session, 0, &data, 1, producer));
    ok(tightwire_device_session_wait(session, 0, consumer));
    must(cudaMemcpyAsync(gradient.data(), data, kCount * sizeof(float), cudaMemcpyDeviceToHost, consumer));
    consumer.synchronize();
    int32_t kept = 0;
    ok(tightwire_device_session_commit(session, &kept));
    EXPECT_EQ(kept, 1);
    results.insert(results.end(), gradient.begin(), gradient.end());
  }
  ok(tightwire_device_session_synchronize(session));
  tightwire_statistics told{};
  told.struct_size = sizeof told;
  ok(tightwire_device_session_statistics(session, &told));
  EXPECT_EQ(told.gradient_bytes, kSteps * kCount * sizeof(float));
  EXPECT_GT(told.sent_bytes, 0u);
  EXPECT_LT(told.sent_bytes, told.gradient_bytes);
  tightwire_device_session_close(session);
  return results;
}

TEST(CInterfaceToDevices, HasTheBitsAndTheStatesOfHosts) {
  use(0);
  for (const bool over_nccl : {true, false}) {
    constexpr int kRanks = 2;
    prepare_devices(kRanks);
    const OnHosts hosts(kRanks), hosts_for_states(kRanks);
    const auto outcomes = run_each(local::make(kRanks), [&](const std::shared_ptr<Transport>& thread) {
      const int rank = thread->rank();
      must(cudaSetDevice(rank));
      ncclComm* const nccl = over_nccl ? cuda_emulation::join_communicator(kRanks, rank, 7) : nullptr;
      tightwire_device_communicator* communicator = nullptr;
      ok(over_nccl ? tightwire_device_communicator_adopt_nccl(nccl, 20000, &communicator)
                   : tightwire_device_communicator_staged(hosts.communicator(rank), 20000, &communicator));
      EXPECT_TRUE(contains(tightwire_device_communicator_description(communicator), over_nccl ? "nccl" : "staged"))
          << tightwire_device_communicator_description(communicator);
      std::vector<std::byte> state;
      const std::vector<float> results = run_on_device(communicator, state);
      tightwire_device_communicator_close(communicator);
      if (over_nccl) cuda_emulation::leave_communicator(nccl);
      EXPECT_EQ(results, hosts_for_states.run(rank, 0, kSteps));
      EXPECT_EQ(std::vector<float>(results.end() - kCount, results.end()),
                hosts_for_states.run(rank, kSteps - 1, 1, state));
    });
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.message << last_words();
    expect_nothing_left();
  }
}

TEST(CInterfaceToDevices, MisuseIsAStatusAndAText) {
  use(0);
  prepare_devices(1);
  must(cudaSetDevice(0));
  tightwire_device_communicator* communicator = nullptr;
  fails(tightwire_device_communicator_adopt_nccl(nullptr, 0, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "is null");
  fails(tightwire_device_communicator_staged(nullptr, 0, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "handle is null");
  ncclComm* const nccl = cuda_emulation::join_communicator(1, 0, 8);
  fails(tightwire_device_communicator_adopt_nccl(nccl, -1, &communicator), TIGHTWIRE_INVALID_ARGUMENT, "negative");
  EXPECT_EQ(communicator, nullptr);
  ok(tightwire_device_communicator_adopt_nccl(nccl, 0, &communicator));
  tightwire_device_session* session = nullptr;
  const auto open = [&](const char* words) { return tightwire_device_session_open(communicator, words, &session); };
  fails(open("int9"), TIGHTWIRE_INVALID_ARGUMENT, "known are exact");
  fails(open("int8 telemetry=/tmp"), TIGHTWIRE_UNSUPPORTED, "not for devices");
  fails(open("int8 levels=node:1"), TIGHTWIRE_UNSUPPORTED, "");
  ok(open("int8 small=compressed"));
  ok(tightwire_device_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, nullptr));
  ok(tightwire_device_session_seal(session));
  std::vector<float> on_host(kCount);
  void* const data = on_host.data();
  fails(tightwire_device_session_start(session, 0, &data, 1, nullptr), TIGHTWIRE_INVALID_ARGUMENT, "");
  fails(tightwire_device_session_wait(session, 0, nullptr), TIGHTWIRE_INVALID_ARGUMENT, "was not started");
  fails(tightwire_device_session_restore(session, data, 9), TIGHTWIRE_CORRUPT, "");
  tightwire_device_session_close(session);
  tightwire_device_communicator_close(communicator);
  cuda_emulation::leave_communicator(nccl);
}

}  // namespace
}  // namespace tightwire::testing::c_interface_test
