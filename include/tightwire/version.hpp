#pragma once

namespace tightwire {

inline constexpr const char* kVersion = "0.1.0";

/// Version of everything that crosses the wire. Ranks with different ones refuse each other.
inline constexpr unsigned kWireVersion = 3;

}  // namespace tightwire
