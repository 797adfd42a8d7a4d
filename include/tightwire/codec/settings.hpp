#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include <tightwire/codec/concept.hpp>
#include <tightwire/error.hpp>

namespace tightwire {

/// What text may say of a codec; what it does not say is as the codec has it.
struct CodecSettings {
  std::optional<int> block;
  std::optional<Rounding> round;
  std::optional<int> hadamard;         ///< size of the rotation before the codec
  std::optional<std::uint64_t> signs;  ///< seed of the rotation
};

namespace detail {

/// Throws Error(invalid_argument) for a choice that the codec does not have.
template <BlockCodec C>
C with_settings(const CodecSettings& settings) {
  C codec;
  if (settings.block) codec.block = *settings.block;
  if constexpr (requires { codec.round; }) {
    if (settings.round) codec.round = *settings.round;
  } else if (settings.round) {
    throw Error(Errc::invalid_argument, std::string(C::name) + ": has no choice of rounding");
  }
  return codec;
}

}  // namespace detail
}  // namespace tightwire
