#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace tightwire::mpi {

constexpr std::uint64_t kProtocol = 1;
constexpr int kControlTag = 0;

/// What travels under MPI's tag 0: the announcement of a message, whose bytes follow under a tag of their own, or a
/// word about the sender.
struct Control {
  enum class Kind : std::uint32_t {
    hello = 1,  ///< `tag` is the version of this protocol, `bytes` the number of the sender's node
    message,
    abort,  ///< with a reason of `bytes` bytes
    goodbye,
  };
  static constexpr std::uint32_t kMagic = 0x7477'6d70;
  static constexpr std::size_t kLongestReason = 480;

  std::uint32_t magic = kMagic;  ///< also tells byte orders apart
  Kind kind = Kind::message;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  ///< of the message among those of its sender to its receiver
};
static_assert(sizeof(Control) == 32);

struct ControlWithReason {
  Control control;
  std::array<char, Control::kLongestReason> reason;
};
static_assert(sizeof(ControlWithReason) == sizeof(Control) + Control::kLongestReason);

}  // namespace tightwire::mpi
