#include "handshake.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "proof.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

constexpr std::string_view kMagic = "TWIRE-RV";
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kIntroductionBytes = 8 + 3 * 4 + kNonceBytes;

// The two labels differ so that neither proof can be played back as the other.
std::string rank_proof(std::string_view key, const Transcript& transcript, std::string_view origin) {
  std::string said = "tightwire: a rank joins|" + transcript.hello + transcript.welcome;
  return keyed_digest(key, said.append(origin));
}

std::string verdict_proof(std::string_view key, const Transcript& transcript, std::string_view content) {
  std::string said = "tightwire: rank 0 answers|" + transcript.hello + transcript.welcome;
  return keyed_digest(key, said.append(content));
}

Verdict decode_verdict(std::string_view content) {
  if (content.size() < 4) return {Errc::corrupt, "the reason is missing"};
  const auto code = get_u32(content);
  const bool known = code <= static_cast<std::uint32_t>(Errc::internal);
  return {known ? static_cast<Errc>(code) : Errc::corrupt, printable_reason(content.substr(4))};
}

std::string encode_content(Errc code, std::string_view text) {
  std::string content;
  put_u32(content, static_cast<std::uint32_t>(code));
  return content.append(text.substr(0, kReasonBytes));
}

}  // namespace

Introduction introduce(const JoinRequest& request) {
  return {request.protocol, static_cast<std::uint32_t>(request.rendezvous.rank),
          static_cast<std::uint32_t>(request.rendezvous.size), random_bytes(kNonceBytes)};
}

std::string encode(const Introduction& introduction) {
  std::string body(kMagic);
  put_u32(body, introduction.protocol);
  put_u32(body, introduction.rank);
  put_u32(body, introduction.size);
  return body + introduction.nonce;
}

std::optional<Introduction> decode_introduction(std::string_view body) {
  if (body.size() != kIntroductionBytes || !body.starts_with(kMagic)) return std::nullopt;
  body.remove_prefix(kMagic.size());
  return Introduction{get_u32(body), get_u32(body.substr(4)), get_u32(body.substr(8)), std::string(body.substr(12))};
}

std::string process_origin() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return std::string(host.data()) + ", process " + std::to_string(::getpid());
}

std::string encode_proof(std::string_view key, const Transcript& transcript, std::string_view origin) {
  return rank_proof(key, transcript, origin).append(origin);
}

std::optional<std::string> check_proof(std::string_view key, const Transcript& transcript, std::string_view body) {
  if (body.size() < kProofBytes) return std::nullopt;
  const std::string_view origin = body.substr(kProofBytes);
  if (!same_secret(rank_proof(key, transcript, origin), body.substr(0, kProofBytes))) return std::nullopt;
  return printable_reason(origin);
}

std::string encode_verdict(std::string_view key, const Transcript& transcript, const Verdict& verdict) {
  // The text must fit what a side reads that has not seen our proof yet.
  const std::string content =
      encode_content(verdict.code, std::string_view(verdict.text).substr(0, kHandshakeBytes - kProofBytes - 4));
  return verdict_proof(key, transcript, content) + content;
}

std::optional<Verdict> check_verdict(std::string_view key, const Transcript& transcript, std::string_view body) {
  if (body.size() < kProofBytes + 4) return std::nullopt;
  const std::string_view content = body.substr(kProofBytes);
  if (!same_secret(verdict_proof(key, transcript, content), body.substr(0, kProofBytes))) return std::nullopt;
  return decode_verdict(content);
}

std::string encode_failure(const Error& error) { return encode_content(error.code(), error.what()); }

Verdict decode_failure(std::string_view body) { return decode_verdict(body); }

std::string printable_reason(std::string_view reason) {
  std::string text(reason.substr(0, kReasonBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }, ' ');
  return text;
}

}  // namespace tightwire::rendezvous
