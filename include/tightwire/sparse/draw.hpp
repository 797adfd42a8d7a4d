#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include <tightwire/detail/philox.hpp>

namespace tightwire::sparse {

/// One element out of each of `drawn.size()` runs that `elements` are cut into, ascending. The same on every rank.
/// Every element is drawn with the same probability, if runs are equally long.
inline void draw(std::uint64_t seed, std::uint32_t use, std::uint32_t parameter, std::size_t elements,
                 std::span<std::uint32_t> drawn) {
  // Apart from the noise of stochastic rounding, which has the same counters.
  constexpr std::uint32_t kPurpose = 0x646e6172u;
  const std::size_t runs = drawn.size();
  tightwire::detail::Philox random{};
  for (std::size_t run = 0; run < runs; ++run) {
    if (run % 4 == 0)
      random = tightwire::detail::Philox::at(
          {static_cast<std::uint32_t>(run / 4), static_cast<std::uint32_t>((run / 4) >> 32), use, parameter},
          static_cast<std::uint32_t>(seed) ^ kPurpose, static_cast<std::uint32_t>(seed >> 32));
    const std::size_t begin = elements / runs * run + elements % runs * run / runs;
    const std::size_t end = elements / runs * (run + 1) + elements % runs * (run + 1) / runs;
    const std::uint64_t within = std::uint64_t{random.words[run % 4]} * (end - begin) >> 32;
    drawn[run] = static_cast<std::uint32_t>(begin + within);
  }
}

}  // namespace tightwire::sparse
