#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tightwire/cuda.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::cuda {

/// Moves bytes between the devices of one job, in the order of a stream.
///
/// Calls throw Error(transport | device | peer_lost | timeout) that names the rank and the call; after one of them the
/// transport is closed, and every later call throws the same error. `check` and `abort` are safe from any thread.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// The device that its memory and streams are of.
  virtual int device() const noexcept = 0;
  /// The mode really in force, for people.
  virtual std::string describe() const = 0;

  /// Another one among the same ranks, whose rounds do not meet the rounds of this one: for one user alone, as rounds
  /// are matched by their order. Collective, in the same order on every rank; returns when all ranks have come.
  /// `timeout`: how long a round may take once its turn has come.
  virtual std::shared_ptr<Transport> open_channel(std::chrono::milliseconds timeout) = 0;

  /// Puts a round on a stream, all its messages side by side, and returns when it is there: it does not wait for the
  /// device, unless too many rounds are under way, which a transport may set a limit to. The n-th send to a peer meets
  /// its n-th receive from us, and both have as many bytes; tags say nothing. Memory is the device's.
  virtual void post(std::span<const Message> round, Stream stream) = 0;
  /// Throws what went wrong since, if anything did. Waits for nothing.
  virtual void check() = 0;
  /// Gives up: rounds that are under way end, with nothing of use in their memory.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Memory of its own is not freed when it ends, for a device that does not come to the end of its rounds.
  virtual void leave_memory() noexcept {}

  /// Bytes that rounds so far have put through memory of the host, sent and received.
  virtual std::uint64_t staged_bytes() const noexcept { return 0; }
};

/// Rounds between devices over a transport of the host's (UCX, MPI, ranks of one process): what is sent is copied to
/// pinned memory, and what came is copied from there. A Session on it copies encoded frames, never gradients. Works on
/// the current device. Collective. Neither `Session::start` nor `Handle::wait` waits for it: a thread of the transport
/// drives the host's, and streams wait for a number in pinned memory. Rounds that hang, lost ranks and damaged bytes
/// close it, and let go streams that wait. Throws Error(unsupported) on every rank if one has no device for it, or a
/// `host` of one thread alone.
std::shared_ptr<Transport> staged(std::shared_ptr<tightwire::Transport> host,
                                  std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace tightwire::cuda
