#pragma once
#include <cstddef>
#include <utility>

#include <tightwire/detail/lanes.hpp>

namespace tightwire::low_rank {

using tightwire::detail::Lanes;

template <int Half, class T, int W, std::size_t... I>
TIGHTWIRE_INLINE Lanes<T, W> add_halves_of_two(const Lanes<T, W>& a, const Lanes<T, W>& b,
                                               std::index_sequence<I...> /*lanes*/) {
  // First halves, then second ones: of the parts of a, and behind them of those of b.
  const auto first = __builtin_shufflevector(
      a.v, b.v, static_cast<int>(static_cast<int>(I) / Half * 2 * Half + static_cast<int>(I) % Half)...);
  const auto second = __builtin_shufflevector(
      a.v, b.v, static_cast<int>(static_cast<int>(I) / Half * 2 * Half + Half + static_cast<int>(I) % Half)...);
  return Lanes<T, W>::of(first + second);
}

/// sums[i] := the sum of the lanes of x[i], of at most W registers; sums has room for W. Of 2 * Half lanes the second
/// half is added to the first, and so on with what results: s and s + Half for s < Half first. Two registers at a time,
/// so that it takes about as many additions as there are registers.
template <int Half, class T, int W, int N>
TIGHTWIRE_INLINE void sum_lanes(const Lanes<T, W> (&x)[N], T* sums) {
  static_assert(N <= W);
  Lanes<T, W> y[(N + 1) / 2];
  TIGHTWIRE_UNROLL(8)
  for (int i = 0; i < (N + 1) / 2; ++i)
    y[i] = add_halves_of_two<Half>(x[2 * i], x[2 * i + 1 < N ? 2 * i + 1 : 2 * i], std::make_index_sequence<W>());
  if constexpr (Half > 1)
    sum_lanes<Half / 2>(y, sums);
  else
    y[0].store(sums);
}
/// The same where every sum has its lanes in several registers, x[part][i]: parts are added first, the second half to
/// the first.
template <class T, int W, int Parts, int N>
TIGHTWIRE_INLINE void sum_parts(Lanes<T, W> (&x)[Parts][N], T* sums) {
  if constexpr (Parts > 1) {
    TIGHTWIRE_UNROLL(16)
    for (int i = 0; i < N; ++i) {
      TIGHTWIRE_UNROLL(2)
      for (int p = 0; p < Parts / 2; ++p) x[p][i] = x[p][i] + x[p + Parts / 2][i];
      if constexpr (Parts == 4) x[0][i] = x[0][i] + x[1][i];
    }
  }
  sum_lanes<W / 2>(x[0], sums);
}

}  // namespace tightwire::low_rank
