#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/error.hpp>

namespace tightwire {

/// In front of what a rank tells the others when it first joins: which transport it was asked for. Ranks that were
/// asked for different ones may part at the next step, and then some would wait for the others.
inline constexpr std::string_view kAskedMagic = "tightwire-asked-1 ";

inline std::string with_asked(std::string_view asked, std::string_view blob) {
  return std::string(kAskedMagic).append(asked).append("\n").append(blob);
}

/// What is behind it, by rank; a blob without it stays as it is, and whoever reads it says what it is not. Throws
/// Error(mismatch), the same on all ranks, naming two that were asked for different transports.
inline std::vector<std::string> behind_asked(const std::vector<std::string>& blobs) {
  std::vector<std::string> rests;
  std::string_view first;
  std::size_t first_rank = 0;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::string_view blob = blobs[rank];
    const std::size_t end = blob.find('\n');
    if (!blob.starts_with(kAskedMagic) || end == std::string_view::npos) {
      rests.emplace_back(blob);
      continue;
    }
    const std::string_view asked = blob.substr(kAskedMagic.size(), end - kAskedMagic.size());
    if (first.empty()) {
      first = asked;
      first_rank = rank;
    }
    if (asked != first)
      throw Error(Errc::mismatch, "ranks were asked for different transports (TIGHTWIRE_TRANSPORT): rank " +
                                      std::to_string(first_rank) + " for " + std::string(first) + ", rank " +
                                      std::to_string(rank) + " for " + std::string(asked));
    rests.emplace_back(blob.substr(end + 1));
  }
  return rests;
}

}  // namespace tightwire
