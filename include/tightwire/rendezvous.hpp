#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/error.hpp>

namespace tightwire {

/// Who we are in a job, where its rank 0 is found, and the key that proves we belong to it.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  /// "tcp://host:port": rank 0 listens there (a host name other than localhost: on all interfaces).
  /// "file:///path": rank 0 listens on a free port and writes its addresses into that file (shared by all ranks; a
  /// file left by a crashed job is replaced or waited out; who cannot read it cannot join).
  /// "local:///path": as file, for ranks on one machine: rank 0 listens on loopback only.
  std::string address;
  /// Required to join, equal on all ranks; proven by challenge and response, never sent.
  std::string key;
  /// Limit for the whole of joining, and the default limit of every later wait.
  std::chrono::milliseconds timeout{60'000};
};

namespace rendezvous {

/// Reads rank, size, address and key from the usual variables, ours first: TIGHTWIRE_RANK/_WORLD_SIZE/_RENDEZVOUS/
/// _JOB_KEY/_TIMEOUT (seconds); torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID);
/// Open MPI (OMPI_COMM_WORLD_RANK/_SIZE); PMI and Slurm. Without any of them: one rank alone.
/// TIGHTWIRE_RENDEZVOUS, _JOB_KEY and _TIMEOUT override in every case. A key made of a launcher's job number keeps jobs
/// apart but is no secret; among ranks on one machine the rendezvous file adds one.
/// Throws Error(invalid_argument) that names the variable that is missing or malformed.
Rendezvous environment();

}  // namespace rendezvous

/// The standing control channel of a job: made by joining, used to notice within milliseconds that a rank died or
/// gave up. One TCP connection per rank to rank 0, one sleeping thread per process; no traffic but the kernel's
/// keep-alives while all is well. Safe to call from several threads. In a child of fork() it is inert.
class Membership {
 public:
  struct Loss {
    int rank;
    std::string reason;  ///< "its process ended", or what it said in `give_up`
  };

  /// Joins the job and exchanges one blob per rank. Throws Error(timeout) that lists who is present and who is
  /// missing, Error(mismatch) when a rank is duplicate, out of range or of another world size or version (names both),
  /// Error(peer_lost) when a rank ends while the job joins, Error(transport) with address and errno when rank 0 cannot
  /// listen, Error(invalid_argument) for an address, key, timeout or blob (above 16 MiB) that cannot work. Strangers
  /// and wrong keys are turned away without disturbing the job. Two joins of a job at a time need two addresses.
  static std::unique_ptr<Membership> join(const Rendezvous& rendezvous, std::string_view blob);

  virtual ~Membership() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// What each rank gave to `join`, by rank.
  virtual const std::vector<std::string>& blobs() const noexcept = 0;
  /// The first loss noticed, if any. Cheap: one atomic load while there is none.
  virtual std::optional<Loss> loss() const = 0;
  /// Readable (poll) from the first loss on; for a sleeping progress loop.
  virtual int loss_descriptor() const noexcept = 0;
  /// Tells all ranks that this one stops working, and why.
  virtual void give_up(std::string_view reason) noexcept = 0;
  /// Returns once every rank has called it, or a rank is lost, or the limit is over. After it the end of a peer is no
  /// loss. Call it before tearing down what peers may still use.
  virtual void leave(std::chrono::milliseconds limit) noexcept = 0;
};

}  // namespace tightwire
