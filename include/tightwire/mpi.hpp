#pragma once
#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include <tightwire/transport.hpp>

namespace tightwire::mpi {

/// What an MPI implementation may call MPI_Comm: a pointer to a structure of its own (Open MPI) or a number (MPICH). So
/// this header needs no mpi.h, one library header serves all, and the compiled part can tell a handle of another
/// implementation from its own.
template <class Handle>
concept CommunicatorHandle = std::same_as<Handle, int> ||
    (std::is_pointer_v<Handle>&& std::is_class_v<std::remove_pointer_t<Handle>>);

struct Options {
  std::chrono::milliseconds timeout{60'000};  ///< of opening, and of the collective close
};

namespace detail {

/// An MPI_Comm and which kind of handle it is.
struct Communicator {
  std::uintptr_t bits;
  bool is_pointer;
};
std::unique_ptr<Transport> adopt(Communicator communicator, const Options& options);

}  // namespace detail

/// A transport among the ranks of an MPI communicator, over a duplicate of it, so that messages of the two never meet.
///
///     mpi::adopt(MPI_COMM_WORLD)
///
/// Collective: returns on every rank, or throws Error(timeout | transport | mismatch) within the limit. MPI must be
/// initialized and outlive the transport, whose end is collective too. Every message costs a small one before it, which
/// carries the tag (MPI's tags are too short for ours) and the size. Where MPI was initialized with less than
/// MPI_THREAD_MULTIPLE, the thread that adopts is the only one that may use the transport: others get
/// Error(unsupported). So does whoever calls `Session::start`, which works in the background, before anything is
/// started; `Session::all_reduce` and `run` do not.
/// Memory of messages that a lost peer left unfinished may be in use by MPI for ever: MPI takes no send back.
/// Throws Error(invalid_argument) without MPI, for an intercommunicator, for MPI_COMM_NULL, and for a handle of another
/// MPI than this library was built with.
template <CommunicatorHandle Handle>
std::unique_ptr<Transport> adopt(Handle communicator, const Options& options = {}) {
  if constexpr (std::is_pointer_v<Handle>)
    return detail::adopt({reinterpret_cast<std::uintptr_t>(communicator), true}, options);
  else
    return detail::adopt({static_cast<std::uintptr_t>(static_cast<unsigned>(communicator)), false}, options);
}

/// The MPI library linked: "Open MPI v4.1.4".
std::string version();

}  // namespace tightwire::mpi
