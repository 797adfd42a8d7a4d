#pragma once
#include <vector>

#include <tightwire/host/level.hpp>

#include "rounds.hpp"

namespace bench {

/// What memory gives: a copy, x[i] *= c, and x[i] += y[i], in this order. The last two write no line that they have not
/// read, and so show the most that one core can move; the better of them is the roofline.
std::vector<Subject> roofline(tightwire::host::Level level, float* x, const float* y, std::size_t count);
inline constexpr std::size_t kCopy = 0, kScale = 1, kAdd = 2;

}  // namespace bench
