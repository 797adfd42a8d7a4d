#pragma once
#include <array>
#include <string>
#include <string_view>

namespace tightwire::rendezvous {

inline constexpr std::size_t kProofBytes = 32;

/// HMAC-SHA256 of `message` under `key`, as 32 raw bytes. Throws Error(internal) when the library refuses.
std::string keyed_digest(std::string_view key, std::string_view message);

/// Compares without telling by its duration where the two differ.
bool same_secret(std::string_view left, std::string_view right) noexcept;

/// `bytes` from the kernel's random generator. Throws Error(internal).
std::string random_bytes(std::size_t bytes);

/// Lower-case hexadecimal.
std::string to_hex(std::string_view bytes);

}  // namespace tightwire::rendezvous
