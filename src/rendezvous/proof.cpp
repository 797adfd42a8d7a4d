#include "proof.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>

#include <tightwire/error.hpp>

#include "errno_text.hpp"

namespace tightwire::rendezvous {

std::string keyed_digest(std::string_view key, std::string_view message) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(message.data());
  const auto* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(), digest.data(), &length);
  if (made == nullptr || length != kProofBytes) throw Error(Errc::internal, "libcrypto cannot compute HMAC-SHA256");
  return {reinterpret_cast<const char*>(digest.data()), length};
}

bool same_secret(std::string_view left, std::string_view right) noexcept {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

std::string random_bytes(std::size_t bytes) {
  std::string random(bytes, '\0');
  std::size_t filled = 0;
  while (filled < bytes) {
    const ssize_t got = ::getrandom(random.data() + filled, bytes - filled, 0);
    if (got < 0 && errno != EINTR) {
      throw Error(Errc::internal, "getrandom failed: " + errno_text(errno));
    }
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return random;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4U];
    text += kDigits[value & 15U];
  }
  return text;
}

}  // namespace tightwire::rendezvous
