#include "listening.hpp"

#include "address.hpp"
#include "joining.hpp"
#include "proof.hpp"
#include "socket.hpp"

namespace tightwire::rendezvous {
namespace {

/// How long who listens at the address in a file left behind may take to show that it is a living rank 0.
constexpr std::chrono::milliseconds kProbeLimit{500};

Listening listen_at_host(const Address& address, const JoinRequest& request) {
  Listening listening;
  auto numeric = parse_numeric(address.host, address.port);
  if (numeric.empty() && address.host == "localhost") numeric.push_back(loopback(address.port));
  // A host name often stands for 127.0.1.1 on its own host; the others could not reach that.
  listening.socket = numeric.empty() ? listen_everywhere(address.port) : listen_at(numeric.front());
  listening.key = request.rendezvous.key;
  listening.where = local_address(listening.socket).text();
  return listening;
}

/// Throws Error(mismatch), also on the other side, when a rank 0 that proves our key waits at the announced place.
void refuse_second_rank_zero(const std::string& path, const JoinRequest& request) {
  std::string problem;
  const auto announcement = read_announcement(path, problem);
  if (!announcement) return;
  const std::string key = combine_keys(request.rendezvous.key, announcement->secret);
  const bool same_machine = announcement->machine == machine_name();
  for (const std::string& text : same_machine ? announcement->loopback : announcement->addresses) {
    const TimePoint until = std::min(request.deadline, Clock::now() + kProbeLimit);
    const Address address = parse_address("tcp://" + text);
    for (const SocketAddress& place : parse_numeric(address.host, address.port)) {
      try_to_join(place, {request, key, until}, problem);
    }
  }
}

Listening listen_by_file(const Address& address, const JoinRequest& request) {
  Listening listening;
  const bool local = address.kind == Address::Kind::local;
  listening.socket = local ? listen_at(loopback(0)) : listen_everywhere(0);
  const std::uint16_t port = local_address(listening.socket).port();
  Announcement announcement{machine_name(), to_hex(random_bytes(32)), {loopback(port).text()}, {}};
  if (!local) {
    for (const SocketAddress& place : reachable_addresses(port)) announcement.addresses.push_back(place.text());
  }
  auto file = AddressFile::write(address.path, announcement, false);
  if (!file) {
    refuse_second_rank_zero(address.path, request);
    file = AddressFile::write(address.path, announcement, true);
  }
  listening.file = std::move(*file);
  listening.key = combine_keys(request.rendezvous.key, announcement.secret);
  listening.where = "port " + std::to_string(port) + ", written to " + address.path;
  return listening;
}

}  // namespace

std::string combine_keys(const std::string& job_key, const std::string& file_secret) {
  return keyed_digest(job_key, "tightwire: file secret|" + file_secret);
}

Listening listen_for_ranks(const JoinRequest& request) {
  const Address address = parse_address(request.rendezvous.address);
  return address.kind == Address::Kind::tcp ? listen_at_host(address, request) : listen_by_file(address, request);
}

}  // namespace tightwire::rendezvous
