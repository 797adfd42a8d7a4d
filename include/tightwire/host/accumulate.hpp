#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include <tightwire/host/arithmetic.hpp>
#include <tightwire/host/blocks.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/packing.hpp>

namespace tightwire::host {

/// Divides by a whole number; by a power of two it multiplies with the inverse, which gives the same.
template <int W>
class Divisor {
 public:
  TIGHTWIRE_INLINE explicit Divisor(float divisor)
      : divisor_(divisor),
        inverse_(1.0f / divisor),
        zero_(0),
        power_of_two_(std::has_single_bit(static_cast<unsigned>(divisor))) {
    asm("" : "+r"(zero_));
  }
  TIGHTWIRE_INLINE void apply(Lanes<float, W> (&x)[4]) const {
    if (power_of_two_) [[likely]] {
      // The compiler does not know that an exclusive or with zero changes nothing, so it cannot contract the product
      // with the addition that follows, which would round a subnormal once instead of twice.
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j)
        x[j] = from_bits(to_bits(x[j] * Lanes<float, W>(inverse_)) ^ Lanes<std::uint32_t, W>(zero_));
    } else {
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j) x[j] = x[j] / Lanes<float, W>(divisor_);
    }
  }

 private:
  float divisor_;
  float inverse_;
  std::uint32_t zero_;
  bool power_of_two_;
};

/// Our own contribution to one block.
template <BlockCodec C>
struct Own {
  const float* x;
  typename C::Scale scale;
  bool decoded;       ///< x already holds decoded values
  float* difference;  ///< what they miss of x; null: not wanted
  bool past_cache;    ///< of `difference`, which is aligned for it
};

/// All contributions to one block, in the order of their ranks.
template <BlockCodec C>
struct Contributions {
  std::span<const std::byte* const> sources;  ///< null: our own
  std::size_t param_at;                       ///< in every source
  std::size_t codes_at;
  Own<C> own;
};

/// One after the other of the contributions to a block, a group at a time.
template <BlockCodec C, int W>
struct Contribution {
  using Group = Lanes<float, W>[4];
  using A = Arithmetic<C, W>;

  TIGHTWIRE_INLINE static const std::byte* codes(const Contributions<C>& all, std::size_t k, std::size_t i) {
    return all.sources[k] + all.codes_at + i * C::bits / 8;
  }
  TIGHTWIRE_INLINE static void of_peer(const Contributions<C>& all, std::size_t k, const std::byte* codes,
                                       Group& value) {
    typename C::Param param{};
    std::memcpy(&param, all.sources[k] + all.param_at, kParamBytes<C>);
    const typename C::Scale scale = C::scale(param);
    Lanes<int, W> code[4];
    unpack<C::bits, W>(codes, code);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) value[j] = A::value(code[j], scale);
  }
  TIGHTWIRE_INLINE static void own(const Own<C>& own, std::size_t i, float* difference, bool past_cache, Group& value) {
    Group from;
    load<W>(own.x + i, from);
    if (own.decoded) {
      TIGHTWIRE_UNROLL(4)
      for (int j = 0; j < 4; ++j) value[j] = from[j];
      return;
    }
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) value[j] = A::decoded(A::encode(from[j], own.scale), own.scale);
    if (difference != nullptr) store_difference<W>(from, value, difference, past_cache);
  }
  /// Of a whole group.
  TIGHTWIRE_INLINE static void of(const Contributions<C>& all, std::size_t k, std::size_t i, Group& value) {
    if (all.sources[k] == nullptr)
      own(all.own, i, all.own.difference != nullptr ? all.own.difference + i : nullptr, all.own.past_cache, value);
    else
      of_peer(all, k, codes(all, k, i), value);
  }
  /// Of the `left` elements that end a block.
  TIGHTWIRE_INLINE static void of_rest(const Contributions<C>& all, std::size_t k, std::size_t i, std::size_t left,
                                       Group& value) {
    Rest rest{};
    if (all.sources[k] != nullptr) {
      std::memcpy(rest.bytes, codes(all, k, i), code_bytes(C::bits, left));
      return of_peer(all, k, rest.bytes, value);
    }
    own(all.own, i, rest.floats(), false, value);
    if (all.own.difference != nullptr && !all.own.decoded)
      std::memcpy(all.own.difference + i, rest.bytes, left * sizeof(float));
  }
};

/// x := the sum of all contributions to a block, divided, with the residual of the sum; and its statistic. The sum of a
/// group stays in registers from the first contribution to the last. x has room for whole groups.
template <BlockCodec C, int W>
TIGHTWIRE_INLINE typename C::Stat accumulate(const Contributions<C>& all, const Divisor<W>& divisor, const float* added,
                                             float* x, std::size_t count) {
  Statistic<typename C::Stat, W> statistic;
  Lanes<float, W> sum[4], next[4];
  std::size_t i = 0;
  for (; i + 4 * W <= count; i += 4 * W) {
    Contribution<C, W>::of(all, 0, i, sum);
    for (std::size_t k = 1; k < all.sources.size(); ++k) {
      Contribution<C, W>::of(all, k, i, next);
      add<W>(next, sum);
    }
    divisor.apply(sum);
    if (added != nullptr) {
      add<W>(added + i, sum);
    }
    statistic.add(sum);
    store<W>(sum, x + i);
  }
  if (i < count) {
    const std::size_t left = count - i;
    // To -0 any x can be added without a change to it, +0 and -0 included.
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < 4; ++j) sum[j] = Lanes<float, W>(-0.0f);
    for (std::size_t k = 0; k < all.sources.size(); ++k) {
      Contribution<C, W>::of_rest(all, k, i, left, next);
      add<W>(next, sum);
    }
    divisor.apply(sum);
    if (added != nullptr) {
      Rest rest{};
      std::memcpy(rest.bytes, added + i, left * sizeof(float));
      add<W>(rest.floats(), sum);
    }
    store<W>(sum, x + i);
    std::fill(x + count, x + i + 4 * W, x[count - 1]);
    load<W>(x + i, sum);
    statistic.add(sum);
  }
  return statistic.result();
}

}  // namespace tightwire::host
