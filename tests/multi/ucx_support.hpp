#pragma once
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <tightwire/transport.hpp>
#include <tightwire/ucx.hpp>

#include "mixed/mixed_transport.hpp"
#include "process_ranks.hpp"
#include "shm/shm_transport.hpp"

/// What the tests of transports between processes share. They run inside rank processes, so that a failed check throws.
namespace tightwire::testing {

struct Network {
  std::string name;
  ucx::Options options;
  bool is_shm = false;    ///< our own shared memory, not UCX
  bool is_mixed = false;  ///< our own inside nodes, UCX across

  /// `nodes`: of a mixed one; every other rank shares one unless they are given.
  std::unique_ptr<Transport> open(const Rendezvous& rendezvous, std::vector<int> nodes = {},
                                  std::chrono::milliseconds longest_sleep = kLongestSleep) const {
    if (is_shm) return shm::open(rendezvous, {}, longest_sleep);
    if (!is_mixed) return ucx::open(rendezvous, options);
    for (int rank = static_cast<int>(nodes.size()); rank < rendezvous.size; ++rank) nodes.push_back(rank % 2);
    return mixed::open(rendezvous, nodes, options, {}, longest_sleep);
  }
};

inline void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

/// UCX's.
inline std::vector<Network> networks() {
  return {{"shared_memory", {.transports = "posix,cma,self", .devices = ""}},
          {"tcp", {.transports = "tcp,self", .devices = "lo"}}};
}

inline std::vector<Network> all_networks() {
  std::vector<Network> all = networks();
  all.push_back({.name = "shm", .options = {}, .is_shm = true});
  all.push_back({.name = "mixed", .options = networks().back().options, .is_mixed = true});
  return all;
}

inline void require(bool is_true, const std::string& what) {
  if (!is_true) throw std::runtime_error("not so: " + what);
}

/// The error that `body` throws, or a failed check.
template <class Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no error was thrown");
}

inline void wait(Transport& transport, Ticket ticket, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const TimePoint until = Clock::now() + limit;
  while (!transport.done(ticket)) {
    if (Clock::now() >= until) throw Error(Errc::timeout, "still waiting for ranks " + transport.waiting_for(ticket));
    transport.idle(until);
  }
}

inline Message send_to(int peer, std::uint64_t tag, std::span<std::byte> data) {
  return {.kind = Message::Kind::send, .peer = peer, .tag = tag, .data = data.data(), .bytes = data.size()};
}

inline Message receive_from(int peer, std::uint64_t tag, std::span<std::byte> data) {
  return {.kind = Message::Kind::receive, .peer = peer, .tag = tag, .data = data.data(), .bytes = data.size()};
}

/// Bytes that only this seed gives.
inline std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 generator(seed);
  std::vector<std::byte> bytes(count + 8);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = generator();
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  bytes.resize(count);
  return bytes;
}

inline std::uint64_t seed_of(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return (a * 1'000 + b) * 1'000'000 + c;
}

/// Returns when every rank has called it.
inline void barrier(Transport& transport, std::uint64_t tag = 0xBA221E2) {
  std::vector<std::byte> in(static_cast<std::size_t>(transport.size()));
  std::byte out{1};
  std::vector<Message> round;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    round.push_back(receive_from(peer, tag, std::span(in).subspan(static_cast<std::size_t>(peer), 1)));
    round.push_back(send_to(peer, tag, std::span(&out, 1)));
  }
  wait(transport, transport.post(round));
}

/// What ranks and the test's own process share: a value in memory that outlives them all.
template <class Value>
class Shared {
 public:
  Shared()
      : value_(static_cast<Value*>(
            mmap(nullptr, sizeof(Value), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (value_ == MAP_FAILED) throw std::runtime_error("mmap failed");
    new (value_) Value{};
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(value_, sizeof(Value)); }
  Value& operator*() const noexcept { return *value_; }
  Value* operator->() const noexcept { return value_; }

 private:
  Value* value_;
};

}  // namespace tightwire::testing
