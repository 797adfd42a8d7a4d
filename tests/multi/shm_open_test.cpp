// What shared memory needs, what is taken where it cannot be, and how memory of the program becomes shared.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <thread>

#include <tightwire/open_transport.hpp>
#include <tightwire/shm.hpp>
#include <tightwire/testing/transport_conformance.hpp>
#include <tightwire/workspace.hpp>

#include "process_ranks.hpp"
#include "shm/opening.hpp"
#include "shm/peer.hpp"
#include "shm/segment.hpp"

namespace {
std::size_t largest_refused_set = 0;  ///< of processors, in bytes, as on machines with more of them
std::atomic<std::uint64_t> allocations{0};
thread_local int allocations_until_failure = -1;  // never
}  // namespace

// Not inlined: g++ 12 would take an inlined half for a mismatch with the other.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// In front of that of the C library.
extern "C" int sched_getaffinity(pid_t process, std::size_t bytes, cpu_set_t* set) noexcept {
  if (bytes <= largest_refused_set) {
    errno = EINVAL;
    return -1;
  }
  const long count = syscall(SYS_sched_getaffinity, process, bytes, set);
  if (count < 0) return -1;
  std::memset(reinterpret_cast<char*>(set) + count, 0, bytes - static_cast<std::size_t>(count));
  return 0;
}

namespace tightwire::testing::shm_open_test {
namespace {

using transport_check::barrier;
using transport_check::error_of;
using transport_check::finish;
using transport_check::from;
using transport_check::require;
using transport_check::to;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Mappings of memory files of ours in this process.
int mapped_files() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count += has(line, "memfd:tightwire") ? 1 : 0;
  return count;
}

void run(int ranks, const std::function<void(const Rendezvous&)>& body) {
  const auto results = run_ranks(ranks, [&](const Rendezvous& rendezvous) {
    body(rendezvous);
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
}

TEST(ShmOpen, DescribesItselfAndLeavesNoMapping) {
  run(3, [](const Rendezvous& rendezvous) {
    {
      const auto transport = shm::open(rendezvous);
      require(transport->describe().starts_with("shm: 3 ranks"), transport->describe());
      require(transport->shares_memory() && transport->node() != 0, "its ranks are one node, whose memory they share");
      require(mapped_files() > 2, "it maps the others' files");
      barrier(*transport);
    }
    require(mapped_files() == 0, "they are gone with it");
  });
}

TEST(ShmOpen, TakesOneRankAlone) {
  run(1, [](const Rendezvous& rendezvous) { require(shm::open(rendezvous)->describe() == "shm: alone", "alone"); });
}

TEST(ShmOpen, SaysWhyRanksCannotShareMemory) {
  run(3, [](const Rendezvous& rendezvous) {
    if (rendezvous.rank == 2) prctl(PR_SET_DUMPABLE, 0);
    const Error error = error_of([&] { shm::open(rendezvous); }, "a rank that may not be looked into");
    require(error.code() == Errc::unsupported, error.what());
    for (const char* part : {"ranks 0 and 2", "rights", "not dumpable"})
      require(has(error.what(), part), std::string(part) + " in: " + error.what());
  });
}

TEST(ShmOpen, IsTakenWhereItFitsAndOtherwiseOnlyWhenAskedFor) {
  run(2, [](const Rendezvous& rendezvous) {
    Rendezvous own = rendezvous;
    const auto described = [&](const char* turn, const std::string& name) {
      own.address = rendezvous.address + turn;
      const auto transport = open_transport(own, name);
      barrier(*transport);
      return transport->describe();
    };
    require(has(described("1", ""), "shm: 2 ranks"), "it fits");
    setenv("TIGHTWIRE_TRANSPORT", "ucx", 1);
    require(has(described("2", ""), "ucx "), "the variable decides");
    require(has(described("3", "shm"), "shm: "), "an argument comes before it");
    require(has(error_of([&] { described("4", "tcp"); }, "another name").what(), "'tcp'"), "it is named");
    unsetenv("TIGHTWIRE_TRANSPORT");
    if (rendezvous.rank == 1) prctl(PR_SET_DUMPABLE, 0);
    setenv("UCX_TLS", "tcp,self", 1);
    require(has(described("5", "auto"), "ucx "), "it does not fit");
  });
}

void set_limit(__rlimit_resource resource, std::size_t bytes) {
  const rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
  require(setrlimit(resource, &limit) == 0, "a limit is set");
}

/// Each on rank 1 alone; every rank comes to the same end, and both texts name the two.
TEST(ShmOpen, TakesAnotherTransportWhateverKeepsARankFromSharing) {
  struct Case {
    __rlimit_resource resource;
    std::size_t bytes;
    std::vector<std::string> parts;
  };
  for (const auto& [resource, bytes, parts] : std::vector<Case>{
           {RLIMIT_AS, std::size_t{3} << 30, {"rank 1 cannot open the memory of rank 0", "ulimit -v"}},
           {RLIMIT_FSIZE, 65'536, {"rank 1", "files may have 65536"}},
       })
    run(2, [&, resource = resource, bytes = bytes, parts = parts](const Rendezvous& rendezvous) {
      setenv("UCX_TLS", "tcp,self", 1);
      if (rendezvous.rank == 1) set_limit(resource, bytes);
      Rendezvous own = rendezvous;
      const Error error = error_of([&] { shm::open(own); }, "a rank that cannot share");
      for (const std::string& part : parts) require(has(error.what(), part), part + " in: " + error.what());
      own.address += "2";
      const auto transport = open_transport(own, "auto");
      require(has(transport->describe(), "ucx "), transport->describe());
      barrier(*transport);
    });
}

TEST(ShmOpen, SharesLessWhereFilesAreLimited) {
  run(2, [](const Rendezvous& rendezvous) {
    constexpr std::size_t kLimit = std::size_t{8} << 20;
    set_limit(RLIMIT_FSIZE, kLimit);
    const auto transport = shm::open(rendezvous);
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      struct stat status {};
      if (!has(std::filesystem::read_symlink(each).string(), "memfd:tightwire")) continue;
      require(stat(each.path().c_str(), &status) == 0 && static_cast<std::size_t>(status.st_size) <= kLimit,
              "its file is no larger than files may be; got " + std::to_string(status.st_size) + " bytes");
    }
    const Workspace little(1 << 20), much(std::size_t{8} << 20);
    for (const Workspace* memory : {&much, &little}) {
      transport->attach_pages(memory->pages());
      std::fill_n(memory->data(), 500'000, std::byte(1 + rendezvous.rank));
      const Message send = to(1 - rendezvous.rank, 3, memory->span().first(500'000));
      const Message receive = from(1 - rendezvous.rank, 3, memory->span().last(500'000));
      const Ticket ticket = transport->post({&send, 1});
      finish(*transport, transport->post({&receive, 1}));
      finish(*transport, ticket);
      require(std::count(receive.data, receive.data + receive.bytes, std::byte(2 - rendezvous.rank)) == 500'000,
              "what was sent arrives, from memory that is shared or not");
    }
    barrier(*transport);
  });
}

/// They may still be able to over UCX, or be on several machines.
TEST(ShmOpen, LeavesItToTheOthersToSayHowManyRanksAreTooMany) {
  constexpr int kTooMany = shm::kMostRanks + 1;
  const shm::Peer peer = shm::decode_peer(shm::prepare(kTooMany)->blob(), 0);
  EXPECT_EQ(peer.failure, Errc::unsupported);
  EXPECT_EQ(peer.failure_text, "shm: at most 1024 ranks can share memory, and there are 1025");
  EXPECT_FALSE(peer.place.boot_id.empty()) << "where it is, is known";
  run(1, [](const Rendezvous& rendezvous) {
    Rendezvous job = rendezvous;
    job.size = kTooMany;
    job.timeout = std::chrono::milliseconds(300);
    const Error error = error_of([&] { open_transport(job, "auto"); }, "one rank of many");
    require(error.code() == Errc::timeout, error.what());
  });
}

TEST(ShmOpen, NamesTheTransportsThatRanksWereAskedFor) {
  run(2, [](const Rendezvous& rendezvous) {
    setenv("UCX_TLS", "tcp,self", 1);
    Rendezvous own = rendezvous;
    for (const auto& [first, second] : std::vector<std::array<std::string, 2>>{
             {"auto", "shm"}, {"ucx", "shm"}, {"auto", "mixed"}, {"mixed", "ucx"}}) {
      own.address += "1";
      const TimePoint began = Clock::now();
      const Error error = error_of([&] { open_transport(own, rendezvous.rank == 0 ? first : second); }, "a difference");
      require(error.code() == Errc::mismatch, error.what());
      require(has(error.what(), "rank 0 for " + first) && has(error.what(), "rank 1 for " + second), error.what());
      require(Clock::now() - began < std::chrono::seconds(5), "nobody waits for the limit");
    }
  });
}

TEST(ShmOpen, KnowsItsProcessorsHoweverManyThereAre) {
  const std::string few = shm::allowed_processors();
  ASSERT_FALSE(few.empty());
  largest_refused_set = 1'000;
  const std::string many = shm::allowed_processors();
  largest_refused_set = ~std::size_t{0};
  EXPECT_EQ(shm::allowed_processors(), "");
  largest_refused_set = 0;
  EXPECT_EQ(many.substr(0, few.size()), few);
  EXPECT_GT(many.size(), 2'000u);
  std::vector<shm::Peer> peers(2);
  peers[0].processors = few;
  peers[1].processors = many;
  EXPECT_EQ(shm::processors_of(peers, {0, 1}), shm::processors_of(peers, {0}));
  peers[1].processors = "";
  EXPECT_EQ(shm::processors_of(peers, {0, 1}), std::nullopt) << "unknown is not none";
}

/// One limit holds for all attempts together, and who is lost before the second one is not waited for there.
TEST(ShmOpen, TakesNoLongerThanTheLimitWhenItTakesAnotherTransport) {
  for (const bool is_lost : {false, true})
    run(2, [&](const Rendezvous& rendezvous) {
      Rendezvous own = rendezvous;
      own.timeout = std::chrono::milliseconds(1'500);
      if (rendezvous.rank == 1) {
        shm::Peer self{.place = shm::this_place(), .processors = "1", .failure_text = ""};
        self.place.boot_id = "another machine";
        const auto membership = Membership::join(own, shm::encode(self));
        if (is_lost) membership->give_up("of reason 18");
        std::this_thread::sleep_for(is_lost ? std::chrono::milliseconds(500) : std::chrono::milliseconds(3'000));
        return;
      }
      const TimePoint began = Clock::now();
      const Error error = error_of([&] { open_transport(own, "auto"); }, "a rank that does not follow");
      const auto took = Clock::now() - began;
      require(took < std::chrono::milliseconds(is_lost ? 1'000 : 2'300),
              std::to_string(std::chrono::duration<double>(took).count()) + " s");
      require(error.code() == (is_lost ? Errc::peer_lost : Errc::timeout), error.what());
      require(!is_lost || has(error.what(), "rank 1 lost: of reason 18"), error.what());
    });
}

/// Memory whose pages are shared: 3 frames of each rank, by number.
constexpr std::size_t kFrame = 300'000;
std::span<std::byte> frame_of(const Workspace& memory, std::size_t number) {
  return memory.span().subspan(number * kFrame, kFrame);
}

TEST(ShmOpen, LendsWhatLiesInSharedPagesUntilItIsReleased) {
  run(2, [](const Rendezvous& rendezvous) {
    const auto transport = shm::open(rendezvous);
    const int peer = 1 - rendezvous.rank;
    const Workspace memory(3 * kFrame);
    std::fill(memory.span().begin(), memory.span().end(), std::byte(40 + rendezvous.rank));
    transport->attach_pages(memory.pages());
    require(memory.data()[3 * kFrame - 1] == std::byte(40 + rendezvous.rank), "contents stay when pages become shared");
    for (int turn = 0; turn < 3; ++turn) {
      const std::byte* place = frame_of(memory, 1).data();
      const Message receive{Message::Kind::receive, peer, 8, frame_of(memory, 1).data(), kFrame, &place};
      const Message send = to(peer, 8, frame_of(memory, 0));
      const Ticket received = transport->post({&receive, 1});
      const Ticket sent = transport->post({&send, 1});
      finish(*transport, received);
      require(place < memory.data() || place >= memory.data() + memory.size(), "it lies with its sender");
      require(std::count(place, place + kFrame, std::byte(40 + peer)) == kFrame, "it is what was sent");
      require(frame_of(memory, 1)[0] == std::byte(40 + rendezvous.rank), "and was not copied");
      barrier(*transport);
      require(!transport->done(sent), "a send whose bytes are in use is not done");
      barrier(*transport);
      transport->release(received);
      finish(*transport, sent);
    }
    transport->detach(memory.pages());
    const auto kept = std::count(memory.data(), memory.data() + memory.size(), std::byte(40 + rendezvous.rank));
    require(kept == static_cast<std::ptrdiff_t>(memory.size()),
            "contents stay afterwards; kept " + std::to_string(kept));
    barrier(*transport);
  });
}

TEST(ShmOpen, IsInertInAForkedChild) {
  run(2, [](const Rendezvous& rendezvous) {
    auto transport = shm::open(rendezvous);
    const int peer = 1 - rendezvous.rank;
    const Workspace memory(3 * kFrame);
    std::fill(memory.span().begin(), memory.span().end(), std::byte(40 + rendezvous.rank));
    transport->attach_pages(memory.pages());
    const pid_t child = fork();
    if (child == 0) {
      const Message send = to(peer, 8, frame_of(memory, 0));
      const bool throws = error_of(
                              [&] {
                                transport->post({&send, 1});
                              },
                              "a child")
                                  .code() == Errc::unsupported &&
                          error_of([&] { transport->idle(Clock::now()); }, "a child").code() == Errc::unsupported;
      transport->wake();
      transport->abort("a child");
      transport->detach(memory.pages());
      transport.reset();
      _exit(throws ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "calls in the child are refused");
    require(std::count(memory.data(), memory.data() + memory.size(), std::byte(40 + rendezvous.rank)) ==
                static_cast<std::ptrdiff_t>(memory.size()),
            "the child's end leaves our frames alone");
    const std::byte* place = frame_of(memory, 1).data();
    const Message receive{Message::Kind::receive, peer, 8, frame_of(memory, 1).data(), kFrame, &place};
    const Message send = to(peer, 8, frame_of(memory, 0));
    const Ticket sent = transport->post({&send, 1});
    const Ticket received = transport->post({&receive, 1});
    finish(*transport, received);
    require(std::count(place, place + kFrame, std::byte(40 + peer)) == kFrame, "the peer reads them as before");
    transport->release(received);
    finish(*transport, sent);
    transport->detach(memory.pages());
    barrier(*transport);
  });
}

/// Or receives would go on into memory that the caller, who saw an exception, takes back.
TEST(ShmOpen, IsShutWhereMemoryRunsOut) {
  for (const int allocation : {0, 1, 4})
    run(2, [&](const Rendezvous& rendezvous) {
      const auto transport = shm::open(rendezvous);
      barrier(*transport);
      std::vector<std::byte> bytes(300);
      std::vector<Message> round;
      for (std::size_t i = 0; i < bytes.size(); ++i)
        round.push_back(from(1 - rendezvous.rank, i, std::span(bytes).subspan(i, 1)));
      const auto post = [&] {
        if (rendezvous.rank == 0) allocations_until_failure = allocation;
        const Ticket ticket = transport->post(round);
        allocations_until_failure = -1;
        finish(*transport, ticket);
      };
      const Error error = error_of(post, "out of memory");
      allocations_until_failure = -1;
      require(error.code() == (rendezvous.rank == 0 ? Errc::no_memory : Errc::peer_lost), error.what());
      require(error_of([&] { transport->done(0); }, "afterwards").code() == error.code(), "it stays shut");
    });
}

TEST(ShmOpen, KeepsNoDescriptorOfAPeer) {
  run(3, [](const Rendezvous& rendezvous) {
    const auto count = [] {
      int files = 0;
      for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
        files += has(std::filesystem::read_symlink(each).string(), "memfd:tightwire") ? 1 : 0;
      return files;
    };
    const auto transport = shm::open(rendezvous);
    require(count() == 1, "its own file alone; got " + std::to_string(count()));
    barrier(*transport);
  });
}

TEST(ShmOpen, AllocatesNothingOnceUnderWay) {
  run(3, [](const Rendezvous& rendezvous) {
    const auto transport = shm::open(rendezvous);
    const Workspace memory(3 * kFrame);
    transport->attach_pages(memory.pages());
    std::vector<std::byte> elsewhere(2 * kFrame);
    const int next = (rendezvous.rank + 1) % 3, previous = (rendezvous.rank + 2) % 3;
    const auto step = [&] {
      const std::byte* place = frame_of(memory, 1).data();
      const std::array<Message, 6> round = {{
          {Message::Kind::receive, previous, 1, frame_of(memory, 1).data(), kFrame, &place},
          from(previous, 2, std::span(elsewhere).first(kFrame)),
          from(previous, 3, frame_of(memory, 2).first(4'000)),
          to(next, 3, frame_of(memory, 2).last(4'000)),
          to(next, 2, std::span(elsewhere).last(kFrame)),
          to(next, 1, frame_of(memory, 0)),
      }};
      const Ticket receives = transport->post(std::span(round).first(3));
      const Ticket sends = transport->post(std::span(round).last(3));
      finish(*transport, receives);
      transport->release(receives);
      finish(*transport, sends);
    };
    for (int turn = 0; turn < 100; ++turn) step();
    barrier(*transport);
    const std::uint64_t before = allocations;
    for (int turn = 0; turn < 300; ++turn) step();
    const std::uint64_t more = allocations - before;
    require(more == 0, std::to_string(more) + " allocations in 300 steps");
    transport->detach(memory.pages());
    barrier(*transport);
  });
}

}  // namespace
}  // namespace tightwire::testing::shm_open_test
