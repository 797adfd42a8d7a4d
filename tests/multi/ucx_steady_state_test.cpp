// Once under way, the transport allocates nothing, however long it runs; and it is shut where it cannot.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "ucx_support.hpp"

namespace {
std::atomic<std::uint64_t> allocations{0};
thread_local int allocations_until_failure = -1;  // never

void* counted(std::size_t bytes) {
  ++allocations;
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

/// What UCX answers to the next receive, if not 0.
std::intptr_t next_receive_fails_with = 0;

// In front of UCX's. NOLINTNEXTLINE(readability-function-size)
extern "C" void* ucp_tag_recv_nbx(void* worker, void* data, std::size_t count, std::uint64_t tag, std::uint64_t mask,
                                  const void* parameters) {
  using Receive = void* (*)(void*, void*, std::size_t, std::uint64_t, std::uint64_t, const void*);
  static const auto ucx = reinterpret_cast<Receive>(dlsym(RTLD_NEXT, "ucp_tag_recv_nbx"));
  if (const std::intptr_t status = std::exchange(next_receive_fails_with, 0)) return reinterpret_cast<void*>(status);
  return ucx(worker, data, count, tag, mask, parameters);
}

// Not inlined: g++ 12 would take an inlined half for a mismatch with the other.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return counted(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace tightwire::testing::ucx_steady_state_test {
namespace {

class UcxSteadyState : public ::testing::TestWithParam<Network> {};

INSTANTIATE_TEST_SUITE_P(Networks, UcxSteadyState, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

struct Use {
  std::uint64_t allocations;
  std::size_t heap_bytes;
  long page_faults;
};

Use use_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {allocations.load(), mallinfo2().uordblks + mallinfo2().hblkhd, usage.ru_minflt};
}

/// The rounds of one reduction step: three in flight, of sizes that take every one of UCX's protocols.
void step(Transport& transport, std::vector<std::vector<std::byte>>& in, std::vector<std::byte>& out) {
  std::array<Ticket, 3> tickets{};
  constexpr std::array<std::size_t, 3> kSizes = {64, 8'000, 300'000};
  for (std::size_t index = 0; index < tickets.size(); ++index) {
    std::array<Message, 4> round{};
    std::size_t count = 0;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == transport.rank()) continue;
      const auto place = std::span(in[index * 3 + static_cast<std::size_t>(peer)]).first(kSizes[index]);
      round[count++] = receive_from(peer, index, place);
      round[count++] = send_to(peer, index, std::span(out).first(kSizes[index]));
    }
    tickets[index] = transport.post(round);
  }
  for (const Ticket ticket : tickets) wait(transport, ticket);
}

TEST_P(UcxSteadyState, AllocatesNothing) {
  struct Growth {
    long heap_bytes;
    long page_faults;
  };
  const Shared<Growth> growth;
  const auto results = run_ranks(3, [&](const Rendezvous& rendezvous) {
    const std::unique_ptr<Transport> transport = GetParam().open(rendezvous);
    std::vector<std::vector<std::byte>> in(9, std::vector<std::byte>(300'000));
    std::vector<std::byte> out(300'000);
    for (auto& block : in) transport->attach(block);
    transport->attach(out);
    for (int turn = 0; turn < 300; ++turn) step(*transport, in, out);
    barrier(*transport);
    const Use before = use_so_far();
    for (int turn = 0; turn < 1'000; ++turn) step(*transport, in, out);
    const Use after = use_so_far();
    require(after.allocations == before.allocations, "a thousand steps allocate nothing; they allocated " +
                                                         std::to_string(after.allocations - before.allocations) +
                                                         " times");
    if (rendezvous.rank == 0)
      *growth = {static_cast<long>(after.heap_bytes) - static_cast<long>(before.heap_bytes),
                 after.page_faults - before.page_faults};
    for (auto& block : in) transport->detach(block);
    transport->detach(out);
    barrier(*transport);
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
  // UCX's own pools still grow by a few blocks when more messages than ever arrive early; a leak would be far larger.
  EXPECT_LT(growth->heap_bytes, 1 << 20);
  EXPECT_LT(growth->page_faults, 1'000);
  RecordProperty("heap_bytes", std::to_string(growth->heap_bytes));
  RecordProperty("page_faults", std::to_string(growth->page_faults));
  std::printf("growth over 1000 steps of 12 messages: heap %ld bytes, %ld page faults\n", growth->heap_bytes,
              growth->page_faults);
}

/// Or receives would go on into memory that the caller, who saw an exception, takes back.
TEST_P(UcxSteadyState, IsShutWhereMemoryRunsOut) {
  for (const int allocation : {0, 4, 15}) {
    const auto results = run_ranks(2, [&](const Rendezvous& rendezvous) {
      const std::unique_ptr<Transport> transport = GetParam().open(rendezvous);
      barrier(*transport);
      std::vector<std::byte> bytes(300);
      std::vector<Message> round;
      for (std::size_t i = 0; i < bytes.size(); ++i)
        round.push_back(receive_from(1 - rendezvous.rank, i, std::span(bytes).subspan(i, 1)));
      const Error error = error_of([&] {
        if (rendezvous.rank == 0) allocations_until_failure = allocation;
        const Ticket ticket = transport->post(round);
        allocations_until_failure = -1;
        wait(*transport, ticket);
      });
      allocations_until_failure = -1;
      require(error.code() == (rendezvous.rank == 0 ? Errc::no_memory : Errc::peer_lost), error.what());
      require(std::string(error.what()).starts_with("rank 0"), error.what());
      require(error_of([&] { transport->done(0); }).code() == error.code(), "it stays shut");
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
  }
}

/// What fails in this process is no peer's fault, and known at once.
TEST(UcxFailure, BlamesNoPeerForAFailureOfItsOwn) {
  constexpr std::intptr_t kNoMemory = -4, kInvalidParameter = -5;  // ucs_status_t
  for (const std::intptr_t status : {kNoMemory, kInvalidParameter}) {
    const auto results = run_ranks(2, [&](const Rendezvous& rendezvous) {
      const auto transport = networks().back().open(rendezvous);
      barrier(*transport);
      std::byte byte{};
      const Message message = receive_from(1 - rendezvous.rank, 3, {&byte, 1});
      if (rendezvous.rank == 0) next_receive_fails_with = status;
      const TimePoint began = Clock::now();
      const Error error = error_of([&] { wait(*transport, transport->post({&message, 1})); });
      require(Clock::now() - began < std::chrono::seconds(1), "it is known at once");
      const std::string text = "rank 0: UCX failed here, with a message to or from rank 1: ";
      const Errc own = status == kNoMemory ? Errc::no_memory : Errc::transport;
      require(error.code() == (rendezvous.rank == 0 ? own : Errc::peer_lost), error.what());
      require(std::string(error.what()).starts_with((rendezvous.rank == 0 ? "" : "rank 0 lost: ") + text),
              error.what());
      return 0;
    });
    EXPECT_EQ(complaints(results), "");
  }
}

}  // namespace
}  // namespace tightwire::testing::ucx_steady_state_test
