#pragma once
#include <stdexcept>
#include <string>

namespace tightwire {

/// Why an operation failed. The numeric values are part of the C ABI and never change.
enum class Errc : int {
  ok = 0,
  invalid_argument = 1,  ///< the caller passed something that cannot work; nothing was started
  mismatch = 2,          ///< ranks disagree (shape, dtype, codec, version, step); names both sides
  timeout = 3,           ///< a peer made no progress within the time limit
  peer_lost = 4,         ///< a peer's process ended, or it gave up
  transport = 5,         ///< the network layer failed
  corrupt = 6,           ///< bytes from the wire or a file are not what they claim to be
  nonfinite = 7,         ///< NaN or infinity met under the policy that forbids them
  unsupported = 8,       ///< not built, or not possible with these arguments
  no_memory = 9,
  device = 10,
  internal = 11,
};

/// The one exception class of the library. The message names the rank, and where there are two sides, both.
class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

}  // namespace tightwire
