#pragma once
#include <chrono>
#include <memory>
#include <string>

#include <tightwire/cuda_transport.hpp>
#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

/// What NCCL's ncclComm_t points to.
struct ncclComm;

/// NCCL between devices: component tightwire::nccl. No header of NCCL's or CUDA's is needed to use it, and programs
/// that link it start where NCCL is not installed: the library (libnccl.so.2) is looked for at the first use, and the
/// copy taken that the program has already. Calls throw Error(unsupported) where there is none, or one older than the
/// nccl.h that this was built with.
namespace tightwire::nccl {

/// Joins the job and connects the current device of every rank. Collective: returns on every rank, or throws
/// Error(timeout | mismatch | transport | device | unsupported) within the rendezvous' limit. A rank that dies later is
/// noticed within milliseconds, and ends what the others wait for. A channel lets the host be 64 rounds ahead; then
/// `post` waits for the oldest, no longer than the timeout without any coming to its end.
std::shared_ptr<cuda::Transport> open(const Rendezvous& rendezvous);
/// The same among the ranks of a transport of the host's, which carries one message to each rank and is free then.
std::shared_ptr<cuda::Transport> open(Transport& host, std::chrono::milliseconds timeout = std::chrono::seconds(60));
/// Uses a communicator of the caller's, who keeps it, and keeps it alive while channels are opened. It carries nothing
/// itself: Sessions have channels of their own, split from it. Opening one of a communicator that blocks does so until
/// all ranks have come. Throws Error(invalid_argument) for null, and for a communicator that failed.
std::shared_ptr<cuda::Transport> adopt(ncclComm* communicator,
                                       std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// "2.28.9", of the library that would be used. Throws Error(unsupported) where there is none.
std::string version();

}  // namespace tightwire::nccl
