// Opening: the mode in force is named, what cannot be had is refused by name on every rank, nobody waits for ever.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_open_test {
namespace {

using std::chrono::milliseconds;

void expect_silence(const std::vector<RankResult>& results) {
  EXPECT_EQ(complaints(results), "");
  for (const RankResult& result : results) EXPECT_EQ(result.text, "");
}

/// The error of `open`, which must come soon.
Error error_of_open(const Rendezvous& rendezvous, const ucx::Options& options) {
  const TimePoint began = Clock::now();
  try {
    ucx::open(rendezvous, options);
  } catch (const Error& error) {
    require(Clock::now() - began < std::chrono::seconds(5), "a refusal does not wait for the limit");
    return error;
  }
  throw std::runtime_error("open succeeded");
}

void require_error(const Error& error, Errc code, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    require(error.code() == code && std::string(error.what()).find(part) != std::string::npos,
            "error " + std::to_string(static_cast<int>(code)) + " with '" + part + "'; got " +
                std::to_string(static_cast<int>(error.code())) + " '" + error.what() + "'");
}

TEST(UcxOpen, TellsVersionAndTransports) {
  const auto results = run_ranks(1, [](const Rendezvous&) {
    require(!ucx::version().empty() && ucx::version().find('.') != std::string::npos, "a version");
    const std::string transports = " " + ucx::available_transports() + " ";
    for (const std::string name : {" tcp ", " posix ", " self "})
      require(transports.find(name) != std::string::npos, "'" + name + "' in '" + transports + "'");
    return 0;
  });
  expect_silence(results);
}

TEST(UcxOpen, DescribesTheModeInForce) {
  const std::vector<std::pair<Network, std::string>> cases = {
      {{"", {.transports = "posix,cma,self", .devices = ""}}, "posix cma"},
      {{"", {.transports = "posix,self", .devices = ""}}, "posix"},
      {{"", {.transports = "tcp,self", .devices = "lo"}}, "tcp, checksums"},
      {{"", {.transports = "posix,cma,tcp,self", .devices = "lo"}}, "posix cma"}};
  for (const auto& [network, expected] : cases)
    expect_silence(run_ranks(3, [&, options = network.options, expected = expected](const Rendezvous& rendezvous) {
      const auto transport = ucx::open(rendezvous, options);
      require(transport->rank() == rendezvous.rank && transport->size() == 3, "rank and size");
      require(transport->describe() == "ucx " + ucx::version() + ": " + expected, transport->describe());
      return 0;
    }));
}

TEST(UcxOpen, ObeysTheEnvironmentWhenNothingIsAsked) {
  expect_silence(run_ranks(2, [](const Rendezvous& rendezvous) {
    setenv("UCX_TLS", "tcp,self", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    require(ucx::open(rendezvous)->describe() == "ucx " + ucx::version() + ": tcp, checksums", "UCX_TLS is obeyed");
    Rendezvous other = rendezvous;
    other.address += "2";
    require(ucx::open(other, {.transports = "posix,cma,self", .devices = ""})->describe() ==
                "ucx " + ucx::version() + ": posix cma",
            "options come before the environment");
    return 0;
  }));
}

TEST(UcxOpen, RefusesWhatThisMachineLacksOnEveryRank) {
  struct Case {
    ucx::Options options;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {{.transports = "posix,pigeon,self", .devices = ""}, {"rank 1: ", "'pigeon'", "posix"}},
      {{.transports = "rc", .devices = ""}, {"rank 1: ", "'rc'"}},
      {{.transports = "tcp,self", .devices = "eth77"}, {"rank 1: ", "'eth77'", "lo"}}};
  for (const Case& asked : cases)
    expect_silence(run_ranks(3, [&](const Rendezvous& rendezvous) {
      // Only rank 1 asks for the impossible, and all must hear of it.
      const ucx::Options options = rendezvous.rank == 1 ? asked.options : networks().front().options;
      require_error(error_of_open(rendezvous, options), Errc::unsupported, asked.parts);
      return 0;
    }));
}

TEST(UcxOpen, RefusesRanksWithoutACommonTransport) {
  expect_silence(run_ranks(2, [](const Rendezvous& rendezvous) {
    const Error error = error_of_open(rendezvous, networks()[static_cast<std::size_t>(rendezvous.rank)].options);
    // Whoever notices first tells the other why.
    require(error.code() == Errc::unsupported || error.code() == Errc::peer_lost, "a sensible code");
    require_error(error, error.code(), {"cannot reach rank"});
    return 0;
  }));
}

TEST(UcxOpen, RefusesARankThatJoinsByOtherMeans) {
  expect_silence(run_ranks(3, [](const Rendezvous& rendezvous) {
    if (rendezvous.rank == 2) {
      const auto membership = Membership::join(rendezvous, "I speak something else");
      std::this_thread::sleep_for(milliseconds(200));
      return 0;
    }
    require_error(error_of_open(rendezvous, networks().front().options), Errc::mismatch, {"rank 2 joined with other"});
    return 0;
  }));
}

TEST(UcxOpen, NamesTheRankThatIsMissing) {
  const auto results =
      run_ranks(3,
                [](const Rendezvous& rendezvous) {
                  if (rendezvous.rank == 1) return 0;
                  require_error(error_of_open(rendezvous, networks().front().options), Errc::timeout, {"1"});
                  return 0;
                },
                {.timeout = milliseconds(1'000)});
  expect_silence(results);
}

TEST(UcxOpen, TakesOneRankAlone) {
  expect_silence(run_ranks(1, [](const Rendezvous& rendezvous) {
    const auto transport = ucx::open(rendezvous, networks().front().options);
    require(transport->size() == 1 && transport->done(transport->post({})), "one rank alone has nothing to send");
    return 0;
  }));
}

TEST(UcxOpen, RefusesMessagesThatCannotWorkAndGoesOn) {
  expect_silence(run_ranks(2, [](const Rendezvous& rendezvous) {
    const auto transport = ucx::open(rendezvous, networks().front().options);
    std::byte byte{};
    const int peer = 1 - rendezvous.rank;
    const std::vector<Message> wrong = {
        send_to(rendezvous.rank, 1, {&byte, 1}),
        send_to(2, 1, {&byte, 1}),
        send_to(-1, 1, {&byte, 1}),
        send_to(peer, 1ULL << 48, {&byte, 1}),
        {.kind = Message::Kind::send, .peer = peer, .tag = 1, .data = nullptr, .bytes = 1}};
    for (const Message& message : wrong) {
      const Message round[] = {send_to(peer, 5, {&byte, 1}), message};  // and then the good one must not be sent either
      try {
        transport->post(round);
      } catch (const Error& error) {
        require_error(error, Errc::invalid_argument, {"rank " + std::to_string(rendezvous.rank) + ": message"});
        continue;
      }
      throw std::runtime_error("a message that cannot work was taken");
    }
    const Ticket empty = transport->post({});
    require(empty == 0 && transport->done(empty), "an empty round is done");
    byte = std::byte{9};
    std::byte in{};
    const Message round[] = {receive_from(peer, 5, {&in, 1}), send_to(peer, 5, {&byte, 1})};
    const Ticket ticket = transport->post(round);
    wait(*transport, ticket);
    require(in == byte, "the first message with the tag is the good one");
    for (const Ticket stale : {ticket, ticket + 1, ticket + (Ticket{1} << 32), ~Ticket{0}}) {
      try {
        transport->done(stale);
      } catch (const Error& error) {
        require_error(error, Errc::invalid_argument, {"ticket"});
        continue;
      }
      throw std::runtime_error("a spent ticket was taken");
    }
    require(transport->waiting_for(ticket).empty(), "nobody is waited for");
    return 0;
  }));
}

TEST(UcxOpen, NamesWhomARoundWaitsFor) {
  expect_silence(run_ranks(4, [](const Rendezvous& rendezvous) {
    const auto transport = ucx::open(rendezvous, networks().front().options);
    std::array<std::byte, 4> in{};
    if (rendezvous.rank == 0) {
      std::vector<Message> round;
      for (const int peer : {3, 1, 2})
        round.push_back(receive_from(peer, 1, std::span(in).subspan(static_cast<std::size_t>(peer), 1)));
      const Ticket ticket = transport->post(round);
      require(transport->waiting_for(ticket) == "1, 2, 3", transport->waiting_for(ticket));
      barrier(*transport);
      while (transport->waiting_for(ticket) != "1, 3") {
        require(!transport->done(ticket), "not all have sent");
        transport->idle(Clock::now() + milliseconds(10));
      }
      barrier(*transport);
      wait(*transport, ticket);
      return 0;
    }
    const Message send = send_to(0, 1, std::span(in).first(1));
    barrier(*transport);
    if (rendezvous.rank == 2) wait(*transport, transport->post({&send, 1}));
    barrier(*transport);
    if (rendezvous.rank != 2) wait(*transport, transport->post({&send, 1}));
    return 0;
  }));
}

/// The library that handles a signal, or "" for the default action.
std::string handler_library(int number) {
  struct sigaction action {};
  Dl_info library{};
  sigaction(number, nullptr, &action);
  const bool is_found = dladdr(reinterpret_cast<void*>(action.sa_handler), &library) != 0;
  return is_found ? library.dli_fname : "";
}

TEST(UcxOpen, LeavesSignalsToTheProgram) {
  expect_silence(run_ranks(1, [](const Rendezvous& rendezvous) {
    const bool had_ucx = handler_library(SIGHUP).find("libucs") != std::string::npos;
    require(had_ucx, "libucs takes signals when it is loaded, or this test shows nothing");
    std::signal(SIGILL, [](int) {});
    const std::string own = handler_library(SIGILL);
    const auto transport = ucx::open(rendezvous, networks().front().options);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGHUP})
      require(handler_library(number).find("libucs") == std::string::npos,
              "signal " + std::to_string(number) + " is the program's again");
    require(handler_library(SIGILL) == own, "a handler of the program's own stays");
    return 0;
  }));
}

TEST(UcxOpen, ChecksumsTellBytesApartAndAreNeverZero) {
  expect_silence(run_ranks(2, [](const Rendezvous& rendezvous) {
    const auto transport = ucx::open(rendezvous, networks().back().options);
    for (const std::size_t bytes : {0UL, 1UL, 100UL, 241UL, 5'000UL, 1UL << 20}) {
      auto data = random_bytes(bytes, bytes);
      const std::uint64_t right = transport->checksum(data);
      require(right != 0, "0 would say that there is no checksum");
      for (std::size_t at = 0; at < bytes; at += 1 + bytes / 7) {
        data[at] ^= std::byte{0x10};
        require(transport->checksum(data) != right, "one bit changed shows");
        data[at] ^= std::byte{0x10};
      }
      // The same on every rank, or frames would be refused: XXH3 is fixed for all vector widths.
      std::uint64_t theirs = 0;
      const int peer = 1 - rendezvous.rank;
      auto mine = right;
      const Message round[] = {receive_from(peer, 2, std::as_writable_bytes(std::span(&theirs, 1))),
                               send_to(peer, 2, std::as_writable_bytes(std::span(&mine, 1)))};
      wait(*transport, transport->post(round));
      require(theirs == right, "both ranks compute the same");
    }
    return 0;
  }));
}

TEST(UcxOpen, ChecksumsFollowWhatUcxReallyUses) {
  // Both may share memory, but not by the same means, so UCX takes TCP.
  expect_silence(run_ranks(2, [](const Rendezvous& rendezvous) {
    const auto transport =
        ucx::open(rendezvous, {.transports = rendezvous.rank == 0 ? "posix,tcp,self" : "sysv,tcp,self", .devices = ""});
    require(!transport->shares_memory(), transport->describe());
    require(transport->describe() == "ucx " + ucx::version() + ": tcp, checksums", transport->describe());
    require(transport->checksum({}) != 0, "there is a wire");
    return 0;
  }));
}

TEST(UcxOpen, SharedMemoryHasChecksumsIfOneRankWantsThem) {
  expect_silence(run_ranks(3, [](const Rendezvous& rendezvous) {
    ucx::Options options = networks().front().options;
    const auto has_checksums = [&](const std::string& job) {
      Rendezvous other = rendezvous;
      other.address += job;
      const auto transport = ucx::open(other, options);
      require(transport->shares_memory(), "all ranks are on this machine");
      const bool has = transport->checksum(random_bytes(100, 1)) != 0;
      require(transport->describe() == "ucx " + ucx::version() + ": posix cma" + (has ? ", checksums" : ""),
              transport->describe());
      return has;
    };
    require(!has_checksums("a"), "there is no wire");
    if (rendezvous.rank == 1) options.checksums = ucx::Checksums::always;
    require(has_checksums("b"), "one rank asked");
    return 0;
  }));
}

/// Gives this process, and those it starts, a private /dev/shm of so many bytes; false if this user may not.
bool enter_small_shared_memory(const std::string& bytes) {
  return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
}

int exchange_in_small_shared_memory(const Rendezvous& rendezvous) try {
  const auto transport = ucx::open(rendezvous, networks().front().options);
  std::vector<std::byte> in(8 << 20);
  auto out = random_bytes(1, in.size());
  const int peer = 1 - rendezvous.rank;
  const Message round[] = {receive_from(peer, 2, in), send_to(peer, 2, out)};
  wait(*transport, transport->post(round));
  require(in == out, "bytes arrive");
  return 0;
} catch (const Error& error) {
  std::printf("%s", error.what());
  std::fflush(stdout);
  _exit(99);  // UCX 1.13 leaks a little when it cannot make a worker, which a leak checker would blame on us
}

TEST(UcxOpen, SaysHowMuchSharedMemoryIsMissing) {
  // 64 MB is what containers have by default; 1 MB and less is too little for UCX's queues.
  for (const std::string size : {"64m", "1m", "64k"}) {
    const auto outer = run_ranks(1, [&](const Rendezvous&) {
      if (!enter_small_shared_memory(size)) {
        std::printf("not allowed");
        return 0;
      }
      const auto results = run_ranks(2, &exchange_in_small_shared_memory);
      for (const RankResult& result : results) {
        // UCX says how many bytes it wanted, or of what, and that is handed on.
        const auto says = [&](const char* part) { return result.text.find(part) != std::string::npos; };
        const bool is_refused =
            result.exit_status == 99 && (says("Not enough memory") || says("failed to allocate receive FIFO") ||
                                         says("Failed to allocate memory pool"));
        require(size == "64m" ? result.exit_status == 0 : is_refused, complaints(results));
      }
      return 0;
    });
    EXPECT_EQ(complaints(outer), "");
    if (outer[0].text == "not allowed") GTEST_SKIP() << "needs the right to mount";
  }
}

TEST(UcxOpen, WorksWhereProcessesMayNotReadEachOther) {
  // Ranks in user namespaces of their own: reading another process's memory (cma) is forbidden.
  const auto results = run_ranks(2, [](const Rendezvous& rendezvous) {
    if (unshare(CLONE_NEWUSER) != 0) {
      std::printf("not allowed");
      return 0;
    }
    const auto transport = ucx::open(rendezvous, {.transports = "posix,cma,tcp,self", .devices = "lo"});
    std::vector<std::byte> in(4 << 20);
    auto out = random_bytes(1, in.size());
    const int peer = 1 - rendezvous.rank;
    const Message round[] = {receive_from(peer, 2, in), send_to(peer, 2, out)};
    wait(*transport, transport->post(round));
    require(in == out, "bytes arrive");
    std::printf("%s", transport->describe().c_str());
    return 0;
  });
  EXPECT_EQ(complaints(results), "");
  if (results[0].text == "not allowed") GTEST_SKIP() << "needs the right to make user namespaces";
  EXPECT_EQ(results[0].text.find("cma"), std::string::npos) << results[0].text;
}

}  // namespace
}  // namespace tightwire::testing::ucx_open_test
