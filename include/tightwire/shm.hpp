#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::shm {

/// What to do, on every rank alike, where not all ranks can share memory; gets the reason, and for each rank the first
/// one that it can share memory with, which may be itself.
using Otherwise =
    std::function<std::unique_ptr<Transport>(const std::string& reason, const std::vector<int>& node_of_rank)>;

/// Joins the job and connects ranks of one machine through memory that they share: an anonymous file per rank, opened
/// through /proc, so that nothing is left behind however a rank ends and no limit on /dev/shm counts. Frames of a
/// Session are read where their sender has them. Every rank takes 0.3 MiB per other rank besides.
///
/// At most 1024 ranks. They must run on one machine, in the same namespaces of processes, users and network, with the
/// same rights. Collective: returns on every rank or throws Error(unsupported) that says what is different and where,
/// or whose memory a rank cannot open and why, or Error(timeout | mismatch | no_memory | peer_lost), within the
/// rendezvous' limit. That a peer's process ended is known without rank 0 (pidfd, Linux 5.3), too.
///
/// In a child of fork() it is inert: calls throw Error(unsupported), and memory that was attached stays the parent's.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous);

/// The same, but where ranks cannot share memory, for whatever reason, all leave the job and return what `otherwise`
/// gives. It may join again, in what is left of the limit.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Otherwise& otherwise);

}  // namespace tightwire::shm
