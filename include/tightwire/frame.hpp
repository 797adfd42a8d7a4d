#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <tightwire/error.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/version.hpp>

namespace tightwire {

enum class FrameKind : std::uint8_t { greeting = 1, contribution = 2, result = 3 };

/// The first 64 bytes of every message, little-endian. The payload follows.
struct FrameHeader {
  std::uint64_t checksum;  ///< of everything behind it, header and payload; 0 where the transport needs none
  std::uint32_t magic;
  std::uint16_t version;
  std::uint8_t kind;
  std::uint8_t rollbacks;     ///< how many of the steps were rolled back, modulo 256
  std::uint64_t fingerprint;  ///< of the plan all ranks agreed on
  std::uint64_t step;         ///< steps committed and rolled back so far
  std::uint32_t bucket;
  std::uint32_t chunk;
  std::uint32_t sequence;  ///< how often this bucket was reduced before
  std::uint32_t sender;
  std::uint64_t payload_bytes;
  std::uint64_t nonfinite;  ///< non-finite elements in the payload's origin
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);

inline constexpr std::uint32_t kFrameMagic = 0x46525754;  // "TWRF"

/// Tag of a message: the upper 8 of 22 bits of channel, 2 of kind, the other 14 of channel, 8 of sequence, 16 of chunk.
/// Fields wrap. The header has sequence and chunk in full; of the channel it has nothing, but frames of another Session
/// or bucket are told by fingerprint and bucket.
constexpr std::uint64_t message_tag(std::uint32_t channel, FrameKind kind, std::uint32_t sequence,
                                    std::uint32_t chunk) {
  return (std::uint64_t{channel >> 14 & 0xffu} << 40) | (std::uint64_t{static_cast<unsigned>(kind) & 3u} << 38) |
         (std::uint64_t{channel & 0x3fffu} << 24) | (std::uint64_t{sequence & 0xffu} << 16) | (chunk & 0xffffu);
}

namespace frame {

/// Writes the header in front of a payload that is already in place.
inline void seal(const Transport& transport, std::byte* at, FrameHeader header) {
  header.checksum = 0;
  header.magic = kFrameMagic;
  header.version = static_cast<std::uint16_t>(kWireVersion);
  std::memcpy(at, &header, sizeof header);
  const std::size_t bytes = sizeof header + header.payload_bytes;
  header.checksum = transport.checksum({at + sizeof header.checksum, bytes - sizeof header.checksum});
  std::memcpy(at, &header.checksum, sizeof header.checksum);
}

[[noreturn]] inline void refuse(Errc code, std::uint32_t sender, const std::string& what) {
  throw Error(code, "frame from rank " + std::to_string(sender) + ": " + what);
}

inline void require_equal(const char* field, std::uint64_t got, std::uint64_t expected, std::uint32_t sender) {
  if (got != expected)
    refuse(Errc::corrupt, sender,
           std::string(field) + " is " + std::to_string(got) + ", expected " + std::to_string(expected));
}

/// Checks a received frame of exactly sizeof(FrameHeader) + expected.payload_bytes bytes against what it must be,
/// before anything in it is used. Returns the header. Throws Error(corrupt), or Error(mismatch) when the frame is sound
/// but the sender is at another step, ended one otherwise or has another plan.
inline FrameHeader check(const Transport& transport, const std::byte* at, const FrameHeader& expected) {
  FrameHeader header;
  std::memcpy(&header, at, sizeof header);
  const auto sender = static_cast<std::uint32_t>(transport.named(static_cast<int>(expected.sender)));
  if (header.magic != kFrameMagic) refuse(Errc::corrupt, sender, "not a tightwire frame");
  if (header.version != kWireVersion)
    refuse(Errc::mismatch, sender,
           "wire version " + std::to_string(header.version) + ", here " + std::to_string(kWireVersion));
  const std::size_t bytes = sizeof header + expected.payload_bytes;
  if (header.checksum != transport.checksum({at + sizeof header.checksum, bytes - sizeof header.checksum}))
    refuse(Errc::corrupt, sender, "checksum does not match its bytes");
  require_equal("kind", header.kind, expected.kind, sender);
  require_equal("sender", header.sender, expected.sender, sender);
  require_equal("payload size", header.payload_bytes, expected.payload_bytes, sender);
  // First, since a rank that ended a step otherwise has other factors too.
  if (header.step != expected.step || header.rollbacks != expected.rollbacks) {
    const auto past = [](const FrameHeader& h) {
      return std::to_string(h.step) + " steps (" + std::to_string(h.rollbacks) + " rolled back, modulo 256)";
    };
    refuse(Errc::mismatch, sender,
           "rank " + std::to_string(sender) + " has ended " + past(header) + ", this rank " + past(expected) +
               ": every rank must commit or roll back each step alike");
  }
  if (header.fingerprint != expected.fingerprint)
    refuse(Errc::mismatch, sender,
           "belongs to another plan than the one agreed on, scaled its residuals otherwise, or holds other factors of "
           "PowerSGD");
  require_equal("bucket", header.bucket, expected.bucket, sender);
  require_equal("sequence number", header.sequence, expected.sequence, sender);
  require_equal("chunk", header.chunk, expected.chunk, sender);
  return header;
}

}  // namespace frame
}  // namespace tightwire
