#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tightwire/error.hpp>

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

/// Checks the first `arrived` bytes of a word from this rank, before anything in it is used, and returns its reason,
/// which is empty but for an abort. Throws Error(corrupt), or Error(mismatch) for another version of this protocol.
inline std::string_view read_word(int rank, int from, const ControlWithReason& word, std::size_t arrived) {
  const Control& control = word.control;
  const auto refuse = [&](const std::string& what) {
    throw Error(Errc::corrupt, "rank " + std::to_string(from) + " sent " + what);
  };
  if (arrived < sizeof(Control) || arrived > sizeof(word) || control.magic != Control::kMagic)
    refuse("what is no word of tightwire");
  if (control.kind < Control::Kind::hello || control.kind > Control::Kind::goodbye) refuse("a word of an unknown kind");
  if (control.kind == Control::Kind::hello && control.tag != kProtocol)
    throw Error(Errc::mismatch, "rank " + std::to_string(rank) + " speaks version " + std::to_string(kProtocol) +
                                    " of the protocol over MPI, rank " + std::to_string(from) + " version " +
                                    std::to_string(control.tag));
  const std::size_t reason = control.kind == Control::Kind::abort ? control.bytes : 0;
  if (arrived - sizeof(Control) != reason)
    refuse("a word with " + std::to_string(arrived - sizeof(Control)) + " bytes of reason, which says " +
           std::to_string(reason));
  return {word.reason.data(), reason};
}

}  // namespace tightwire::mpi
