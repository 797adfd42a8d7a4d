#pragma once
#include <cstddef>
#include <vector>

#include <tightwire/host/level.hpp>

#include "rounds.hpp"

namespace bench {

/// What memory gives: a copy, x[i] *= c, and x[i] += y[i], in this order. The last two write no line that they have not
/// read, and so show the most that one core can move; the better of them is the roofline.
std::vector<Subject> roofline(tightwire::host::Level level, float* x, const float* y, std::size_t count);
inline constexpr std::size_t kCopy = 0, kScale = 1, kAdd = 2;

/// x[i] += y[i], and a byte written for every element: what encoding to bytes with feedback moves, and nothing else.
Subject moves_of_encoding(tightwire::host::Level level, float* x, const float* y, std::byte* bytes, std::size_t count);

}  // namespace bench
