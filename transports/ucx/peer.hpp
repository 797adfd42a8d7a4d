#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include <tightwire/error.hpp>

namespace tightwire::ucx {

/// What decides whether two processes can share memory, as UCX does it: files in /dev/shm that it opens through
/// /proc/<pid>/fd, and reading each other's memory.
struct HostIdentity {
  std::string boot_id;           ///< of the running kernel
  std::uint64_t shm_device = 0;  ///< of the file system on /dev/shm: containers of one host may have different ones
  std::uint64_t shm_inode = 0;
  std::string rights;  ///< user, and namespaces of users and process ids: across them /proc is closed

  bool operator==(const HostIdentity&) const = default;
};

HostIdentity this_host();
/// Equal for equal hosts.
std::uint64_t number_of(const HostIdentity& host);

/// What a rank tells the others while joining: how to reach it, or why it cannot be reached, so that one rank's failed
/// set-up is every rank's error at once and not a wait for the limit.
struct Peer {
  HostIdentity host;
  bool shared_memory = false;  ///< its UCX may use shared memory
  std::string worker_address;
  Errc failure = Errc::ok;
  std::string failure_text;
};

std::string encode(const Peer& peer);
/// Throws Error(mismatch) naming `rank` if the bytes are not what this version of the library sends.
Peer decode_peer(std::string_view bytes, int rank);

/// True if UCX may connect the two through shared memory.
bool share_memory(const Peer& a, const Peer& b);

}  // namespace tightwire::ucx
