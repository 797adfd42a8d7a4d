// After the first steps a step takes no memory: no allocation on any thread, no page touched for the first time.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/steps.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};
thread_local std::size_t smallest_refused = SIZE_MAX;  // bytes

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (bytes >= smallest_refused) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) { return allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return allocate(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, std::size_t(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, std::size_t(alignment));
}
// Not inlined, or g++ takes `free` for the wrong partner of the `operator new` it knows.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" [[gnu::weak]] void __tsan_init();
extern "C" [[gnu::weak]] void __asan_init();

namespace tightwire::testing {
namespace {

/// Sanitizers touch pages of their own all the time.
bool sanitized() { return &__tsan_init != nullptr || &__asan_init != nullptr; }

constexpr int kRanks = 3;
constexpr int kSteps = 100;

long page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct Cost {
  std::uint64_t allocations = 0;
  long page_faults = 0;
};

/// What `kSteps` steps cost on all ranks together, after a few in which every rank is late once.
Cost steady_cost(const SessionOptions& options, bool background) {
  Model model = mixed_model();
  model.push_back({"topk", {5000}, ElementType::f32, TopK{.ratio = 0.02}});
  model.push_back({"topk in 8", {900}, ElementType::bf16, TopK{.ratio = 0.1, .values = Int8{}}});
  model.push_back({"randomk", {2000}, ElementType::f32, RandomK{.ratio = 0.1, .values = Int8{}}});
  model.push_back({"powersgd", {40, 70}, ElementType::f32, parse_codec("powersgd:rank=1-4,error=0.2+int8")});
  model.push_back({"powersgd in 16", {30, 90}, ElementType::bf16, parse_codec("powersgd:rank=1-4,error=0.2")});
  if (options.plan.algorithm == Algorithm::ring)
    for (Tensor& tensor : model) tensor.codec = tensor.type == ElementType::f32 ? Codec{Bf16{}} : Codec{};
  Cost at[2];
  int reached = 0;
  std::barrier line(kRanks, [&]() noexcept { at[reached++] = {allocations.load(), page_faults()}; });
  run_all(kRanks, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()));
    std::vector<std::vector<void*>> pointers;
    for (BucketId id = 0; id < session->buckets(); ++id) {
      auto& those = pointers.emplace_back();
      for (const ParameterId p : session->bucket_parameters(id)) those.push_back(gradients.pointers()[p]);
    }
    std::vector<Handle> handles;
    handles.reserve(session->buckets());
    const auto step = [&](int number) {
      if (background) {
        handles.clear();
        for (BucketId i = 0; i < pointers.size(); ++i) {
          const BucketId id = transport->rank() == 1 ? pointers.size() - 1 - i : i;
          handles.push_back(session->start(id, pointers[id]));
        }
        for (Handle& handle : handles) handle.wait();
      } else {
        session->all_reduce(gradients.pointers());
      }
      if (options.rollback && number % 5 == 4)
        session->rollback();
      else
        session->commit();
    };
    for (int number = 0; number < 2 * kRanks; ++number) {
      if (number % kRanks == transport->rank()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      step(number);
    }
    line.arrive_and_wait();
    for (int number = 0; number < kSteps; ++number) step(number);
    line.arrive_and_wait();
  });
  EXPECT_EQ(reached, 2);
  return {at[1].allocations - at[0].allocations, at[1].page_faults - at[0].page_faults};
}

TEST(SteadyState, AStepTakesNoMemory) {
  for (const Algorithm algorithm :
       {Algorithm::two_shot, Algorithm::one_shot, Algorithm::automatic, Algorithm::ring, Algorithm::tree})
    for (const bool background : {false, true})
      for (const bool rollback : {false, true}) {
        SessionOptions options;
        options.plan = {.algorithm = algorithm, .share_elements = 300};
        options.bucket_bytes = 8000;
        options.rollback = rollback;
        const Cost cost = steady_cost(options, background);
        const std::string what = std::string(to_string(algorithm)) + (background ? ", background" : ", blocking") +
                                 (rollback ? ", with rollback" : "");
        EXPECT_EQ(cost.allocations, 0u) << what;
        // Some are the system's own (stacks of threads, balancing); a buffer that is taken anew would cost one per
        // step.
        EXPECT_LT(sanitized() ? 0 : cost.page_faults, kSteps / 2) << what;
      }
}

/// Memory that gives out on one rank alone, before anything is changed: the others hear of it, and all go on.
TEST(OutOfMemory, WhileAStateIsReadIsKnownToAllRanks) {
  const Model model = {{"m", {400, 300}, ElementType::f32, PowerSgd{.rank = 4}}};
  std::vector<std::vector<std::byte>> states(2);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto me = static_cast<std::size_t>(transport->rank());
    SessionOptions options;
    options.timeout = std::chrono::seconds(5);
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill_bell(me);
    session->all_reduce(gradients.pointers());
    session->commit();
    const std::vector<std::byte> state = session->save();
    session->all_reduce(gradients.pointers());
    session->commit();
    const std::vector<std::byte> later = session->save();
    if (me == 1) {
      smallest_refused = 4096;
      EXPECT_THROW(session->restore(state), std::bad_alloc);
      smallest_refused = SIZE_MAX;
    } else {
      EXPECT_ERROR(session->restore(state), Errc::mismatch, "rank 1 could not");
    }
    EXPECT_TRUE(session->save() == later);
    session->restore(state);
    EXPECT_TRUE(session->save() == state);
  });
}

TEST(SteadyState, TheCounterCounts) {
  const std::uint64_t before = allocations;
  auto something = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(allocations - before, 2u);
  EXPECT_EQ(something->size(), 100u);
}

}  // namespace
}  // namespace tightwire::testing
