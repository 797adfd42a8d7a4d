#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <tightwire/rendezvous.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::rendezvous {

/// Grows with every change of what follows the handshake. The handshake itself never changes.
inline constexpr std::uint32_t kProtocolVersion = 1;
/// Largest body before the other side has proven the key.
inline constexpr std::size_t kHandshakeBytes = 1024;
/// Largest blob, and largest text of a reason.
inline constexpr std::size_t kBlobBytes = 16U << 20U;
inline constexpr std::size_t kReasonBytes = 4096;
inline constexpr std::size_t kControlBytes = 65536;

/// What `Membership::join` was asked to do, and until when.
struct JoinRequest {
  const Rendezvous& rendezvous;
  std::string_view blob;
  TimePoint deadline;
  std::uint32_t protocol = kProtocolVersion;
};

/// How either side introduces itself; 52 bytes on the wire.
struct Introduction {
  std::uint32_t protocol = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string nonce;
};
/// Of this process, with a fresh nonce.
Introduction introduce(const JoinRequest& request);
std::string encode(const Introduction& introduction);
std::optional<Introduction> decode_introduction(std::string_view body);

/// What both sides have said before the proofs.
struct Transcript {
  std::string hello;
  std::string welcome;
};

/// Where a process lives, for people: "host, process 4711".
std::string process_origin();
/// Proof of a joining rank, together with where it lives.
std::string encode_proof(std::string_view key, const Transcript& transcript, std::string_view origin);
/// The origin when the proof is right.
std::optional<std::string> check_proof(std::string_view key, const Transcript& transcript, std::string_view body);

/// Rank 0's answer: Errc::ok, or why the rank is refused.
struct Verdict {
  Errc code = Errc::ok;
  std::string text;
};
std::string encode_verdict(std::string_view key, const Transcript& transcript, const Verdict& verdict);
/// The verdict when rank 0's proof is right.
std::optional<Verdict> check_verdict(std::string_view key, const Transcript& transcript, std::string_view body);

/// An error as the body of FrameType::failed.
std::string encode_failure(const Error& error);
Verdict decode_failure(std::string_view body);

/// A reason cut to kReasonBytes, with control characters replaced.
std::string printable_reason(std::string_view reason);

}  // namespace tightwire::rendezvous
