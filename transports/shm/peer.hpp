#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/error.hpp>

namespace tightwire::shm {

/// What decides whether two processes can share memory through /proc/<pid>/fd.
struct Place {
  std::string host;        ///< its name, for errors
  std::string boot_id;     ///< of the running kernel
  std::string namespaces;  ///< of process ids and users; and of the network: whose links are apart is taken for apart
  std::string rights;      ///< user, group, permitted capabilities, and whether others of the user may look into it
};

Place this_place();
/// Why the two cannot share memory, or empty.
std::string apart(const Place& a, const Place& b);
/// Equal where processes can share memory.
std::uint64_t number_of(const Place& place);

/// What a rank tells the others that first asks who shares memory at all.
std::string encode(const Place& place);
/// Throws Error(mismatch) naming `rank` if it is not what this version of the library sends.
Place decode_place(std::string_view text, int rank);

/// What a rank tells the others while joining.
struct Peer {
  Place place;
  std::string processors;  ///< those it may run on, as hexadecimal words; empty: unknown
  pid_t process = 0;
  int descriptor = -1;  ///< of its memory file
  int bell = -1;        ///< its number there
  std::uint64_t file_bytes = 0;
  std::uint64_t word = 0;  ///< that its segment begins with, so that another process of this number is not taken for it
  Errc failure = Errc::ok;
  std::string failure_text;
};

std::string encode(const Peer& peer);
/// Throws Error(mismatch) naming `rank` if it is not what this version of the library sends.
Peer decode_peer(std::string_view text, int rank);

/// Processors that this thread may run on, or empty.
std::string allowed_processors();
/// Of some ranks together; nothing where one does not know its own.
std::optional<int> processors_of(const std::vector<Peer>& peers, const std::vector<int>& ranks);

}  // namespace tightwire::shm
