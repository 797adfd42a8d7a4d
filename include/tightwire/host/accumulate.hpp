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
  /// Of the group at `i`, of which `left` elements are left in the block: less than a group go through a copy with
  /// room.
  TIGHTWIRE_INLINE static void of(const Contributions<C>& all, std::size_t k, std::size_t i, std::size_t left,
                                  Group& value) {
    const bool whole = left >= 4 * W;
    Rest rest;
    if (all.sources[k] != nullptr) {
      const std::byte* from = codes(all, k, i);
      if (!whole) {
        rest = {};
        std::memcpy(rest.bytes, from, code_bytes(C::bits, left));
        from = rest.bytes;
      }
      return of_peer(all, k, from, value);
    }
    float* difference = all.own.difference;
    if (difference != nullptr) difference = whole ? difference + i : rest.floats();
    own(all.own, i, difference, whole && all.own.past_cache, value);
    if (!whole && difference != nullptr && !all.own.decoded)
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
  for (std::size_t i = 0; i < count; i += 4 * W) {
    const std::size_t left = count - i;
    Contribution<C, W>::of(all, 0, i, left, sum);
    for (std::size_t k = 1; k < all.sources.size(); ++k) {
      Contribution<C, W>::of(all, k, i, left, next);
      add<W>(next, sum);
    }
    divisor.apply(sum);
    if (left >= 4 * W) {
      if (added != nullptr) add<W>(added + i, sum);
      store<W>(sum, x + i);
    } else {
      if (added != nullptr) {
        Rest rest{};
        std::memcpy(rest.bytes, added + i, left * sizeof(float));
        add<W>(rest.floats(), sum);
      }
      store<W>(sum, x + i);
      std::fill(x + count, x + i + 4 * W, x[count - 1]);
      load<W>(x + i, sum);
    }
    statistic.add(sum);
  }
  return statistic.result();
}

}  // namespace tightwire::host
