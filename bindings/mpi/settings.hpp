#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include <tightwire/codec.hpp>
#include <tightwire/session_options.hpp>

namespace tightwire::mpi {

/// What TIGHTWIRE_MPI says.
struct Settings {
  std::string specification;       ///< what Sessions get: codec, seed, timeout and so on
  std::size_t threshold = 0;       ///< bytes from which on a call is compressed
  std::size_t calls_per_step = 0;  ///< compressed calls of a communicator that make up a step; 0: no error feedback
  bool report = false;             ///< rank 0 says at the end what was saved
  std::chrono::milliseconds timeout{60'000};

  bool covers(std::size_t bytes) const { return bytes != 0 && bytes >= threshold; }
  /// Of the Sessions on a communicator of so many ranks. Throws Error(invalid_argument).
  SessionOptions session(int ranks) const;
};

/// Reads "int8:block=256 threshold=65536 calls-per-step=4", for a job of so many ranks.
/// Throws Error(invalid_argument) that names the word, or what is missing.
Settings parse_settings(std::string_view text, int ranks);

}  // namespace tightwire::mpi
