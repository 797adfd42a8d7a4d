#pragma once
#define OMPI_SKIP_MPICXX 1  // the C++ bindings, which MPI itself gave up
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <string>

#include <tightwire/error.hpp>

namespace tightwire::mpi {

inline std::string error_text(int status) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(status, text.data(), &length) != MPI_SUCCESS) return "MPI error " + std::to_string(status);
  return {text.data(), static_cast<std::size_t>(length)};
}

/// Throws Error(transport) with MPI's words for what a call returned.
inline void require(int status, const char* call) {
  if (status != MPI_SUCCESS) throw Error(Errc::transport, std::string(call) + ": " + error_text(status));
}

}  // namespace tightwire::mpi
