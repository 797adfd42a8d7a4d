#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/consistency.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/local_transport.hpp>
#include <tightwire/rendezvous.hpp>

#include "connect.hpp"
#include "handles.hpp"
#include "structures.hpp"

namespace tightwire::c {
namespace {

constexpr int kMostThreads = 1024;  // as ranks of one process

Rendezvous read(const tightwire_rendezvous* theirs) {
  const tightwire_rendezvous given = copy_in(theirs, "tightwire_communicator_join: rendezvous");
  require(given.size >= 1 && given.rank >= 0 && given.rank < given.size, "tightwire_communicator_join",
          "rendezvous.rank must be from 0 to below rendezvous.size");
  Rendezvous rendezvous{.rank = given.rank, .size = given.size, .address = {}, .key = {}};
  if (given.address != nullptr) rendezvous.address = given.address;
  if (given.key != nullptr) rendezvous.key = given.key;
  require(given.timeout_ms >= 0, "tightwire_communicator_join", "rendezvous.timeout_ms is negative");
  if (given.timeout_ms != 0) rendezvous.timeout = std::chrono::milliseconds(given.timeout_ms);
  return rendezvous;
}

/// The caller's structures are as long as the caller says.
std::vector<Replica> read(const tightwire_replica* given, std::size_t count, const char* call) {
  std::vector<Replica> replicas;
  const auto* at = reinterpret_cast<const std::byte*>(given);
  for (std::size_t i = 0; i < count; ++i) {
    const tightwire_replica one =
        copy_in(reinterpret_cast<const tightwire_replica*>(at), std::string(call) + ": replica " + std::to_string(i));
    require(one.name != nullptr, call, "a name is null");
    require(one.bytes != nullptr || one.size == 0, call, "bytes are null");
    replicas.push_back({one.name,
                        {static_cast<const std::byte*>(one.bytes), one.size},
                        one.must_differ != 0 ? Replica::Must::differ : Replica::Must::be_equal});
    at += one.struct_size;
  }
  return replicas;
}

/// Takes part in a comparison with what was wrong in place of replicas, so that every rank hears of it at once.
void refuse_to_compare(const std::shared_ptr<Transport>& transport, std::uint64_t step, const char* why) {
  const std::string name = std::string("arguments that were refused: ") + why;
  try {
    const Replica refused{name, {}};
    ConsistencyCheck(transport).compare(step, {&refused, 1});
  } catch (const Error&) {  // the caller has its own
  }
}

}  // namespace
}  // namespace tightwire::c

using tightwire::c::guarded;
using tightwire::c::require;
using tightwire::c::usable;

tightwire_status tightwire_communicator_from_environment(tightwire_communicator** communicator) {
  return guarded([&] {
    require(communicator != nullptr, "tightwire_communicator_from_environment", "the output argument is null");
    *communicator = tightwire::c::communicator_of(tightwire::c::connect(tightwire::rendezvous::environment()));
  });
}

tightwire_status tightwire_communicator_join(const tightwire_rendezvous* rendezvous,
                                             tightwire_communicator** communicator) {
  return guarded([&] {
    require(rendezvous != nullptr && communicator != nullptr, "tightwire_communicator_join", "an argument is null");
    *communicator = tightwire::c::communicator_of(tightwire::c::connect(tightwire::c::read(rendezvous)));
  });
}

tightwire_status tightwire_communicator_in_process(int32_t size, tightwire_communicator** communicators) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_communicator_in_process";
    require(communicators != nullptr, kCall, "the output argument is null");
    require(size >= 1 && size <= tightwire::c::kMostThreads, kCall, "size must be from 1 to 1024");
    std::vector<std::unique_ptr<tightwire_communicator>> made;
    for (auto& transport : tightwire::local::make(size)) made.emplace_back(tightwire::c::communicator_of(transport));
    std::transform(made.begin(), made.end(), communicators, [](auto& each) { return each.release(); });
  });
}

int32_t tightwire_communicator_rank(const tightwire_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->transport->rank();
}

int32_t tightwire_communicator_size(const tightwire_communicator* communicator) {
  return communicator == nullptr ? -1 : communicator->transport->size();
}

const char* tightwire_communicator_description(const tightwire_communicator* communicator) {
  return communicator == nullptr ? "" : communicator->description.c_str();
}

tightwire_status tightwire_communicator_gather(tightwire_communicator* communicator, uint64_t value, int64_t timeout_ms,
                                               uint64_t* values) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_communicator_gather";
    tightwire::Transport& transport = *usable(communicator, kCall).transport;
    // The other ranks will come here: they are told, and channels go on alike.
    try {
      require(values != nullptr, kCall, "the output argument is null");
      require(timeout_ms > 0, kCall, "timeout_ms must be positive");
    } catch (const tightwire::Error&) {
      tightwire::refuse_to_gather(transport);
      throw;
    }
    const auto all = tightwire::gather_values(transport, value, std::chrono::milliseconds(timeout_ms));
    std::copy(all.begin(), all.end(), values);
  });
}

tightwire_status tightwire_communicator_compare(tightwire_communicator* communicator, uint64_t step,
                                                const tightwire_replica* replicas, size_t count, int64_t timeout_ms) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_communicator_compare";
    const auto& transport = usable(communicator, kCall).transport;
    std::vector<tightwire::Replica> all;
    try {
      require(replicas != nullptr || count == 0, kCall, "the replicas are null");
      require(timeout_ms > 0, kCall, "timeout_ms must be positive");
      all = tightwire::c::read(replicas, count, kCall);
    } catch (const tightwire::Error& error) {
      tightwire::c::refuse_to_compare(transport, step, error.what());
      throw;
    }
    tightwire::ConsistencyCheck(transport, {.every = 1, .timeout = std::chrono::milliseconds(timeout_ms)})
        .compare(step, all);
  });
}

tightwire_status tightwire_communicator_abort(tightwire_communicator* communicator, const char* reason) {
  return guarded([&] {
    usable(communicator, "tightwire_communicator_abort")
        .transport->abort(reason == nullptr ? "it gave up" : std::string_view(reason));
  });
}

void tightwire_communicator_close(tightwire_communicator* communicator) {
  if (communicator == nullptr || communicator->owner != getpid()) return;
  delete communicator;
}
