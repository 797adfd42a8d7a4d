#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tightwire/frame.hpp>
#include <tightwire/sparse/plan.hpp>

namespace tightwire::sparse {

/// A frame follows an announcement, a header without payload whose last field is the payload's size to come. They have
/// these numbers in place of that of a chunk.
inline constexpr std::size_t kAnnouncement = 0, kFrame = 1;

inline void announce(const Transport& transport, std::byte* at, FrameHeader header, std::size_t payload_bytes) {
  header.nonfinite = payload_bytes;
  frame::seal(transport, at, header);
}

/// The size that was announced of a payload of sections of these pieces. Throws what frame::check throws, and
/// Error(corrupt) for more than their elements can take.
inline std::size_t announced_bytes(const Transport& transport, const std::byte* at, const FrameHeader& expected,
                                   const Plan& plan, std::span<const Piece> pieces) {
  const std::uint64_t bytes = frame::check(transport, at, expected).nonfinite;
  std::size_t most = 0;
  for (const Piece& piece : pieces)
    most += largest_section(*plan.parameters[piece.parameter].settings.values, piece.count);
  if (bytes > most)
    frame::refuse(Errc::corrupt, expected.sender,
                  "announces a payload of " + std::to_string(bytes) + " bytes, more than the " + std::to_string(most) +
                      " its elements can take");
  return bytes;
}

}  // namespace tightwire::sparse
