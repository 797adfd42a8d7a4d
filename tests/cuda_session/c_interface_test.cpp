// The C interface to Sessions on devices: what C gets is what Sessions on hosts have, bit for bit.
#include <sys/wait.h>
#include <tightwire/tightwire_device.h>
#include <unistd.h>

#include <barrier>
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

constexpr std::int64_t kParts[] = {2, 64};
const Model kModel{{"weight", {64, 48}}, {"scattered", {2, 64}}};

/// How a step ends to which a peer does not come.
tightwire_status abandoned(tightwire_device_session* session, DeviceGradients& on_device) {
  const auto pointers = on_device.pointers();
  const tightwire_status committed = tightwire_device_session_commit(session, nullptr);
  if (committed != TIGHTWIRE_OK) return committed;
  const tightwire_status begun =
      tightwire_device_session_all_reduce(session, pointers.data(), pointers.size(), nullptr);
  return begun != TIGHTWIRE_OK ? begun : tightwire_device_session_synchronize(session);
}

/// Session of a weight and of a buffer that is scattered, sealed; what it tells of itself is asked.
tightwire_device_session* session_of_two(tightwire_device_communicator* communicator) {
  tightwire_device_session* session = nullptr;
  ok(tightwire_device_session_open(communicator, kSpecification, &session));
  size_t weight = 9, scattered = 9, bucket = 9, ids[2] = {9, 9}, count = 9;
  ok(tightwire_device_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, &weight));
  tightwire_buffer buffer{};
  buffer.struct_size = sizeof buffer;
  buffer.name = "scattered";
  buffer.shape = kParts;
  buffer.dimensions = 2;
  buffer.operation = TIGHTWIRE_REDUCE_SCATTER;
  buffer.reserved = 1;
  fails(tightwire_device_session_add_buffer(session, &buffer, &scattered), TIGHTWIRE_UNSUPPORTED, "reserved");
  buffer.reserved = 0;
  ok(tightwire_device_session_add_buffer(session, &buffer, &scattered));
  ok(tightwire_device_session_add_bucket(session, &weight, 1, &bucket));
  EXPECT_EQ(weight, 0u);
  EXPECT_EQ(scattered, 1u);
  ok(tightwire_device_session_seal(session));

  size_t of_weight = 9, of_scattered = 9, parameters = 9, buckets = 9, residual_bytes = 0;
  uint64_t steps = 9;
  ok(tightwire_device_session_bucket_of(session, weight, &of_weight));
  ok(tightwire_device_session_bucket_of(session, scattered, &of_scattered));
  EXPECT_EQ(of_weight, bucket);
  EXPECT_EQ(of_scattered, 1 - bucket);
  ok(tightwire_device_session_bucket(session, of_scattered, ids, 2, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(ids[0], scattered);
  EXPECT_EQ(ids[1], 9u);
  ok(tightwire_device_session_counts(session, &parameters, &buckets, &steps, &residual_bytes));
  EXPECT_EQ(parameters, 2u);
  EXPECT_EQ(buckets, 2u);
  EXPECT_EQ(steps, 0u);
  EXPECT_GE(residual_bytes, kCount * sizeof(float));
  const char* text = nullptr;
  ok(tightwire_device_session_description(session, &text));
  EXPECT_TRUE(contains(text, "\"weight\" [64,48] fp32 int4:block=32")) << text;
  return session;
}

/// What both buffers hold after one call, before the step ends.
std::vector<float> all_reduced(tightwire_device_session* session, DeviceGradients& on_device, int rank, int step) {
  constexpr std::size_t kScattered = 2 * 64;
  const TestStream stream;
  std::vector<float> values = gradient_of(rank, step);
  values.insert(values.end(), values.begin(), values.begin() + kScattered);
  const auto pointers = on_device.pointers();
  const std::size_t sizes[] = {kCount, kScattered};
  const auto copy = [&](cudaMemcpyKind kind) {
    for (std::size_t p = 0, at = 0; p < 2; at += sizes[p++]) {
      const bool up = kind == cudaMemcpyHostToDevice;
      must(cudaMemcpyAsync(up ? pointers[p] : values.data() + at, up ? values.data() + at : pointers[p],
                           sizes[p] * sizeof(float), kind, stream));
    }
  };
  copy(cudaMemcpyHostToDevice);
  ok(tightwire_device_session_all_reduce(session, pointers.data(), pointers.size(), stream));
  copy(cudaMemcpyDeviceToHost);
  stream.synchronize();
  const std::size_t part = kCount + 64 * static_cast<std::size_t>(rank);  // of scattered, which is exact
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t element = part - kCount + i;
    EXPECT_EQ(values[part + i], (gradient_of(0, step)[element] + gradient_of(1, step)[element]) / 2);
  }
  return values;
}

TEST(CInterfaceToDevices, StepsAreUndoneSavedAndTakenUp) {
  use(0);
  constexpr int kRanks = 2;
  prepare_devices(kRanks);
  const OnHosts hosts(kRanks);
  std::vector<std::vector<std::byte>> states(kRanks);
  std::barrier<> all_saved(kRanks);
  const auto outcomes = run_each(local::make(kRanks), [&](const std::shared_ptr<Transport>& thread) {
    const int rank = thread->rank();
    must(cudaSetDevice(rank));
    tightwire_device_communicator* communicator = nullptr;
    ok(tightwire_device_communicator_staged(hosts.communicator(rank), 20000, &communicator));
    tightwire_device_session* const session = session_of_two(communicator);
    DeviceGradients on_device(kModel);
    const auto step = [&](int number) { return all_reduced(session, on_device, rank, number); };
    const std::vector<float> first = step(0);
    ok(tightwire_device_session_rollback(session));
    EXPECT_EQ(step(0), first);
    ok(tightwire_device_session_commit(session, nullptr));
    const void* bytes = nullptr;
    size_t size = 0;
    ok(tightwire_device_session_save(session, &bytes, &size));
    states[static_cast<std::size_t>(rank)].assign(static_cast<const std::byte*>(bytes),
                                                  static_cast<const std::byte*>(bytes) + size);
    all_saved.arrive_and_wait();
    const std::vector<float> next = step(1);
    ok(tightwire_device_session_commit(session, nullptr));
    EXPECT_NE(step(1), next) << "residuals of the step before";
    ok(tightwire_device_session_rollback(session));
    const auto& own = states[static_cast<std::size_t>(rank)];
    ok(tightwire_device_session_restore(session, own.data(), own.size()));
    EXPECT_EQ(step(1), next);
    ok(tightwire_device_session_commit(session, nullptr));
    const void* const all[] = {states[1].data(), states[0].data()};
    const size_t sizes[] = {states[1].size(), states[0].size()};
    ok(tightwire_device_session_restore_ranks(session, all, sizes, 2));
    EXPECT_EQ(step(1), next);
    ok(tightwire_device_session_synchronize(session));

    // A rank gives up: the other one's steps end.
    if (rank == 1)
      ok(tightwire_device_communicator_abort(communicator, "out of data"));
    else
      fails(abandoned(session, on_device), TIGHTWIRE_PEER_LOST, "out of data");
    tightwire_device_session_close(session);
    tightwire_device_communicator_close(communicator);
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.message << last_words();
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
  for (const char* const words : {"int8 levels=node:1", "hier(across=int4)", "auto", "int8 residual=bf16"})
    fails(open(words), TIGHTWIRE_UNSUPPORTED, "on devices");
  // What the header says is not on devices is all there is of it.
  for (const char* const words :
       {"powersgd:rank=2", "randomk:ratio=0.1", "topk:ratio=0.1 momentum=0.9 optimizer-momentum=0",
        "randomk:ratio=0.1 momentum=0.9 optimizer-momentum=0"}) {
    ok(open(words));
    ok(tightwire_device_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, nullptr));
    const tightwire_status sealed = tightwire_device_session_seal(session);
    const bool is_not = contains(words, "randomk") && contains(words, "momentum");
    EXPECT_EQ(sealed, is_not ? TIGHTWIRE_UNSUPPORTED : TIGHTWIRE_OK) << words << ": " << tightwire_last_error();
    tightwire_device_session_close(session);
  }
  ok(open("int8 small=compressed"));
  ok(tightwire_device_session_add(session, "weight", kShape, 2, TIGHTWIRE_FLOAT32, nullptr));
  ok(tightwire_device_session_seal(session));
  std::vector<float> on_host(kCount);
  void* const data = on_host.data();
  fails(tightwire_device_session_start(session, 0, &data, 1, nullptr), TIGHTWIRE_INVALID_ARGUMENT, "");
  fails(tightwire_device_session_wait(session, 0, nullptr), TIGHTWIRE_INVALID_ARGUMENT, "was not started");
  fails(tightwire_device_session_restore(session, data, 9), TIGHTWIRE_CORRUPT, "");
  const pid_t child = fork();
  if (child == 0) {
    const bool told = tightwire_device_session_start(session, 0, &data, 1, nullptr) == TIGHTWIRE_UNSUPPORTED &&
                      contains(tightwire_last_error(), "is a fork");
    tightwire_device_session_close(session);
    tightwire_device_communicator_close(communicator);
    _exit(told ? 0 : 1);
  }
  int left = 1;
  EXPECT_EQ(waitpid(child, &left, 0), child);
  EXPECT_EQ(left, 0) << "a child is told, and closing there does nothing";
  tightwire_device_session_close(session);
  tightwire_device_communicator_close(communicator);
  cuda_emulation::leave_communicator(nccl);
}

TEST(CInterfaceToDevices, WithoutALauncherOneRankIsAlone) {
  use(0);
  prepare_devices(1);
  must(cudaSetDevice(0));
  tightwire_device_communicator* communicator = nullptr;
  fails(tightwire_device_communicator_from_environment(nullptr), TIGHTWIRE_INVALID_ARGUMENT, "output argument");
  ok(tightwire_device_communicator_from_environment(&communicator));
  EXPECT_EQ(tightwire_device_communicator_rank(communicator), 0);
  EXPECT_EQ(tightwire_device_communicator_size(communicator), 1);
  tightwire_device_communicator_close(communicator);
  expect_nothing_left();
}

}  // namespace
}  // namespace tightwire::testing::c_interface_test
