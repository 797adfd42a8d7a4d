#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include <tightwire/low_rank/factor.hpp>

namespace tightwire::testing {

using Values = std::vector<float>;
using Sizes = std::initializer_list<std::size_t>;

inline Values bell(std::size_t count, std::uint32_t stream) {
  Values x(count);
  low_rank::fill_column(x.data(), count, {42, stream, 0});
  return x;
}

}  // namespace tightwire::testing
