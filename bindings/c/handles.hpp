#pragma once
#include <unistd.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <tightwire/tightwire.h>
#include <tightwire/error.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/version.hpp>

// What the opaque tightwire_communicator of tightwire.h is; tightwire_session is in session.cpp. `owner` is the process
// that opened it: threads do not survive fork(), so nothing of it may be touched, or even destroyed, in a child.
// libtightwire_c_mpi and libtightwire_c_device know it as well: see require_same_version.
struct tightwire_communicator {
  std::shared_ptr<tightwire::Transport> transport;
  std::string description;
  pid_t owner = getpid();
};

namespace tightwire::c {

/// Keeps the text for tightwire_last_error of this thread, and returns the status.
tightwire_status fail(Errc code, const char* text) noexcept;

/// Runs `body`; what it throws becomes a status and this thread's last error.
template <class Body>
tightwire_status guarded(Body&& body) noexcept {
  try {
    body();
    return TIGHTWIRE_OK;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(Errc::no_memory, "out of memory");
  } catch (const std::exception& error) {
    return fail(Errc::internal, error.what());
  } catch (...) {
    return fail(Errc::internal, "an exception of an unknown type");
  }
}

inline tightwire_communicator* communicator_of(std::shared_ptr<Transport> transport) {
  auto communicator = std::make_unique<tightwire_communicator>();
  communicator->description = transport->describe();
  communicator->transport = std::move(transport);
  return communicator.release();
}

inline void require(bool holds, const char* call, const char* what) {
  if (!holds) throw Error(Errc::invalid_argument, std::string(call) + ": " + what);
}

/// For libraries beside libtightwire, which hand it objects of C++: of one version both know the same ones.
inline void require_same_version(const char* call) {
  if (std::string_view(tightwire_version()) != kVersion)
    throw Error(Errc::unsupported, std::string(call) + ": this library is of version " + kVersion +
                                       " of tightwire, and the libtightwire loaded is of version " +
                                       tightwire_version() + "; both must be of one build");
}

/// The object behind a handle that the caller may use.
template <class Handle>
Handle& usable(Handle* handle, const char* call) {
  require(handle != nullptr, call, "the handle is null");
  if (handle->owner != getpid())
    throw Error(Errc::unsupported, std::string(call) + ": opened by process " + std::to_string(handle->owner) +
                                       ", of which this is a fork; open what a child needs in the child");
  return *handle;
}

}  // namespace tightwire::c
