#include "peer.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <system_error>

#include <tightwire/agreement.hpp>

namespace tightwire::shm {
namespace {

constexpr std::string_view kMagic = "tightwire-shm-2";
constexpr std::size_t kFields = 13;
constexpr std::string_view kPlaceMagic = "tightwire-shm-place-1";

/// The value of a line "Name:\tvalue" of /proc/self/status.
std::string own_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  return "";
}

/// Fields are separated by line ends, so a text must hold none.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return text;
}

[[noreturn]] void refuse_peer(int rank, std::string_view magic = kMagic) {
  throw Error(Errc::mismatch, "rank " + std::to_string(rank) +
                                  " joined with other means than shared memory or with another version of tightwire: "
                                  "its connection data is not of '" +
                                  std::string(magic) + "'");
}

std::string lines(std::initializer_list<std::string_view> fields) {
  std::string text;
  for (const std::string_view field : fields) (text += field) += '\n';
  return text;
}

template <std::size_t Count>
std::array<std::string_view, Count> fields_in(std::string_view text, std::string_view magic, int rank) {
  std::array<std::string_view, Count> fields;
  for (std::string_view& field : fields) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) refuse_peer(rank, magic);
    field = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  if (!text.empty() || fields[0] != magic) refuse_peer(rank, magic);
  return fields;
}

template <class Number>
Number number_in(std::string_view text, int rank) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse_peer(rank);
  return value;
}

}  // namespace

Place this_place() {
  Place place;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  place.host = one_line(name.data());
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.boot_id;
  std::error_code missing;
  for (const char* each : {"pid", "user", "net"})
    place.namespaces += std::filesystem::read_symlink(std::string("/proc/self/ns/") + each, missing).string() + " ";
  place.rights = one_line("user " + own_status("Uid") + " group " + own_status("Gid") + " capabilities " +
                          own_status("CapPrm") + (prctl(PR_GET_DUMPABLE) == 1 ? "" : " not dumpable"));
  return place;
}

std::string apart(const Place& a, const Place& b) {
  const auto differ = [](const std::string& what, const std::string& x, const std::string& y) {
    return what + ": " + (x.empty() ? "unknown" : x) + " and " + (y.empty() ? "unknown" : y);
  };
  if (a.boot_id != b.boot_id || a.boot_id.empty()) return differ("they run on different machines", a.host, b.host);
  if (a.namespaces != b.namespaces) return differ("they run in different namespaces", a.namespaces, b.namespaces);
  if (a.rights != b.rights) return differ("they have different rights", a.rights, b.rights);
  if (a.rights.find("not dumpable") != std::string::npos)
    return "they may not look into each other (prctl PR_SET_DUMPABLE)";
  return "";
}

std::uint64_t number_of(const Place& place) {
  return fingerprint(place.boot_id + "\n" + place.namespaces + "\n" + place.rights);
}

std::string encode(const Place& place) {
  return lines({kPlaceMagic, place.host, place.boot_id, place.namespaces, place.rights});
}

Place decode_place(std::string_view text, int rank) {
  const auto fields = fields_in<5>(text, kPlaceMagic, rank);
  return {std::string(fields[1]), std::string(fields[2]), std::string(fields[3]), std::string(fields[4])};
}

std::string encode(const Peer& peer) {
  const Place& place = peer.place;
  return lines({kMagic, place.host, place.boot_id, place.namespaces, place.rights, peer.processors,
                std::to_string(peer.process), std::to_string(peer.descriptor), std::to_string(peer.bell),
                std::to_string(peer.file_bytes), std::to_string(peer.word),
                std::to_string(static_cast<int>(peer.failure)), one_line(peer.failure_text)});
}

Peer decode_peer(std::string_view text, int rank) {
  const auto fields = fields_in<kFields>(text, kMagic, rank);
  Peer peer;
  peer.place = {std::string(fields[1]), std::string(fields[2]), std::string(fields[3]), std::string(fields[4])};
  peer.processors = fields[5];
  peer.process = number_in<pid_t>(fields[6], rank);
  peer.descriptor = number_in<int>(fields[7], rank);
  peer.bell = number_in<int>(fields[8], rank);
  peer.file_bytes = number_in<std::uint64_t>(fields[9], rank);
  peer.word = number_in<std::uint64_t>(fields[10], rank);
  const int failure = number_in<int>(fields[11], rank);
  if (failure < 0 || failure > static_cast<int>(Errc::internal)) refuse_peer(rank);
  peer.failure = static_cast<Errc>(failure);
  peer.failure_text = fields[12];
  return peer;
}

std::string allowed_processors() {
  // The kernel refuses a set that is smaller than its own, which may have more than a cpu_set_t.
  constexpr std::size_t kMostProcessors = std::size_t{1} << 20;
  for (std::size_t count = CPU_SETSIZE; count <= kMostProcessors; count *= 2) {
    std::vector<__cpu_mask> words(CPU_ALLOC_SIZE(count) / sizeof(__cpu_mask));
    const auto bytes = std::as_bytes(std::span(words));
    if (sched_getaffinity(0, bytes.size(), reinterpret_cast<cpu_set_t*>(words.data())) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::string text;
    std::array<char, 3> digits{};
    for (const auto byte : bytes) {
      std::snprintf(digits.data(), digits.size(), "%02x", std::to_integer<unsigned>(byte));
      text += digits.data();
    }
    return text;
  }
  return "";
}

std::optional<int> processors_of(const std::vector<Peer>& peers, const std::vector<int>& ranks) {
  int count = 0;
  std::size_t longest = 0;
  for (const int rank : ranks) {
    const std::size_t digits = peers[static_cast<std::size_t>(rank)].processors.size();
    if (digits == 0) return std::nullopt;
    longest = std::max(longest, digits);
  }
  for (std::size_t digit = 0; digit < longest; ++digit) {
    unsigned all = 0;
    for (const int rank : ranks) {
      const std::string& processors = peers[static_cast<std::size_t>(rank)].processors;
      unsigned value = 0;
      if (digit < processors.size()) std::from_chars(&processors[digit], &processors[digit] + 1, value, 16);
      all |= value;
    }
    count += std::popcount(all);
  }
  return count;
}

}  // namespace tightwire::shm
