#pragma once
#include <cstddef>

#include <tightwire/element.hpp>
#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/elements.hpp>

namespace tightwire::host {

/// One block: data [+ added] -> x in fp32, and its statistic. After the last element x repeats it to the end of the
/// group, which changes no statistic.
template <class Stat, ElementType Type, int W>
TIGHTWIRE_INLINE Stat gather(const std::byte* data, const float* added, float* x, std::size_t count) {
  Statistic<Stat, W> statistic;
  Lanes<float, W> group[4];
  std::size_t i = 0;
  for (; i + 4 * W <= count; i += 4 * W) {
    load<Type, W>(data, i, group);
    if (added != nullptr) {
      add<W>(added + i, group);
    }
    store<W>(group, x + i);
    statistic.add(group);
  }
  if (i < count) {
    for (std::size_t k = i; k < count; ++k)
      x[k] = added != nullptr ? load_one<Type>(data, k) + added[k] : load_one<Type>(data, k);
    std::fill(x + count, x + i + 4 * W, x[count - 1]);
    load<W>(x + i, group);
    statistic.add(group);
  }
  return statistic.result();
}

}  // namespace tightwire::host
