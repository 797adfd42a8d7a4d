#pragma once
#include <memory>
#include <string>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::ucx {

/// Whether frames carry a checksum of their bytes.
enum class Checksums {
  automatic,  ///< unless UCX reaches every rank from every other through memory alone, where there is no wire
  always,     ///< if one rank wants them so, all use them
};

struct Options {
  /// UCX transports to allow, in UCX's own words ("posix,cma,self", "tcp,self"); empty: UCX_TLS or UCX's choice.
  std::string transports;
  /// Network devices to allow ("eth1"); empty: UCX_NET_DEVICES or UCX's choice.
  std::string devices;
  Checksums checksums = Checksums::automatic;
};

/// Joins the job and connects to every rank over UCX (shared memory, TCP, what UCX has). Collective: returns on
/// every rank or throws Error(timeout | mismatch | transport) on every rank, within the rendezvous' limit. At most
/// 65536 ranks. In a child of fork() it is inert: calls throw Error(unsupported), and connections stay the parent's.
std::unique_ptr<Transport> open(const Rendezvous& rendezvous, const Options& options = {});

/// The UCX version linked and the transports it has here, for `tightwire info`.
std::string version();
std::string available_transports();
/// Whether UCX here was built with CUDA and can move memory of its devices. Its transport moves memory of the host all
/// the same: see cuda::staged.
bool knows_cuda_memory();

}  // namespace tightwire::ucx
