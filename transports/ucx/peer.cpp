#include "peer.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>

#include "checksum.hpp"

namespace tightwire::ucx {
namespace {

constexpr std::string_view kMagic = "tightwire-ucx-1";

void put(std::string& out, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<char>(value >> (8 * byte)));
}

void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out += text;
}

/// Reads the fields back; every length is checked against what is left.
class Reader {
 public:
  Reader(std::string_view bytes, int rank) : left_(bytes), rank_(rank) {}

  std::uint64_t number() {
    const std::string_view bytes = take(8);
    std::uint64_t value = 0;
    for (std::size_t byte = 0; byte < 8; ++byte)
      value |= std::uint64_t{static_cast<unsigned char>(bytes[byte])} << (8 * byte);
    return value;
  }
  std::string text() {
    const std::uint64_t length = number();
    return std::string(take(length));
  }
  void finish() const {
    if (!left_.empty()) refuse();
  }
  [[noreturn]] void refuse() const {
    throw Error(Errc::mismatch, "rank " + std::to_string(rank_) +
                                    " joined with other means than UCX or with another version of tightwire: its "
                                    "connection data does not start with '" +
                                    std::string(kMagic) + "' or is cut short");
  }

 private:
  std::string_view take(std::uint64_t length) {
    if (length > left_.size()) refuse();
    const std::string_view bytes = left_.substr(0, length);
    left_.remove_prefix(length);
    return bytes;
  }

  std::string_view left_;
  int rank_;
};

/// UCX trusts an address blindly, so it must be what was sent.
void require_intact(std::string_view bytes, int rank) {
  const std::size_t length = bytes.size() - sizeof(std::uint64_t);
  if (Reader(bytes.substr(length), rank).number() != hash(std::as_bytes(std::span(bytes.substr(0, length)))))
    throw Error(Errc::corrupt, "the connection data of rank " + std::to_string(rank) + " was damaged on its way");
}

}  // namespace

HostIdentity this_host() {
  HostIdentity host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host.boot_id;
  struct stat status {};
  if (stat("/dev/shm", &status) == 0) {
    host.shm_device = status.st_dev;
    host.shm_inode = status.st_ino;
  }
  std::error_code missing;
  for (const char* name : {"/proc/self/ns/user", "/proc/self/ns/pid"})
    host.rights += std::filesystem::read_symlink(name, missing).string() + " ";
  host.rights += std::to_string(geteuid());
  return host;
}

std::uint64_t number_of(const HostIdentity& host) {
  const std::string text =
      host.boot_id + " " + std::to_string(host.shm_device) + " " + std::to_string(host.shm_inode) + " " + host.rights;
  return hash(std::as_bytes(std::span(text)));
}

std::string encode(const Peer& peer) {
  std::string out;
  put(out, kMagic);
  put(out, peer.host.boot_id);
  put(out, peer.host.shm_device);
  put(out, peer.host.shm_inode);
  put(out, peer.host.rights);
  put(out, std::uint64_t{peer.shared_memory});
  put(out, peer.worker_address);
  put(out, static_cast<std::uint64_t>(peer.failure));
  put(out, peer.failure_text);
  put(out, hash(std::as_bytes(std::span(out))));
  return out;
}

Peer decode_peer(std::string_view bytes, int rank) {
  Reader reader(bytes, rank);
  if (reader.text() != kMagic) reader.refuse();
  require_intact(bytes, rank);
  Peer peer;
  peer.host.boot_id = reader.text();
  peer.host.shm_device = reader.number();
  peer.host.shm_inode = reader.number();
  peer.host.rights = reader.text();
  peer.shared_memory = reader.number() != 0;
  peer.worker_address = reader.text();
  const std::uint64_t failure = reader.number();
  if (failure > static_cast<std::uint64_t>(Errc::internal)) reader.refuse();
  peer.failure = static_cast<Errc>(failure);
  peer.failure_text = reader.text();
  reader.number();  // the checksum
  reader.finish();
  return peer;
}

bool share_memory(const Peer& a, const Peer& b) {
  return a.shared_memory && b.shared_memory && !a.host.boot_id.empty() && a.host == b.host;
}

}  // namespace tightwire::ucx
