#pragma once
#include <concepts>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>
#include <tightwire/detail/lanes.hpp>
#include <tightwire/detail/pack.hpp>

namespace tightwire::host {

using detail::Lanes;

/// A codec's arithmetic on W elements: its own functions where they take Lanes (written with `auto`, as in the built-in
/// codecs), else one element after the other. `Encoded` is what encoding leaves in registers.
template <BlockCodec C, int W>
struct Arithmetic {
  using Floats = Lanes<float, W>;
  using Ints = Lanes<int, W>;
  using Scale = typename C::Scale;
  using Encoded = Ints;

  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, Scale scale) {
    if constexpr (requires {
                    { C::code(x, scale) } -> std::same_as<Ints>;
                  }) {
      return C::code(x, scale);
    } else {
      Ints codes;
      for (int i = 0; i < W; ++i) codes.v[i] = C::code(x.v[i], scale);
      // Into the range that packing takes, without a change to the bits that go on the wire.
      return C::bits <= 8 ? codes << (32 - C::bits) >> (32 - C::bits) : codes;
    }
  }
  TIGHTWIRE_INLINE static Floats value(const Ints& codes, Scale scale) {
    if constexpr (requires {
                    { C::value(codes, scale) } -> std::same_as<Floats>;
                  }) {
      return C::value(codes, scale);
    } else {
      Floats x;
      for (int i = 0; i < W; ++i) x.v[i] = C::value(codes.v[i], scale);
      return x;
    }
  }
  TIGHTWIRE_INLINE static Floats decoded(const Encoded& encoded, Scale scale) { return value(encoded, scale); }
  /// x - decoded
  TIGHTWIRE_INLINE static Floats difference(const Floats& x, const Encoded& encoded, Scale scale) {
    return x - value(encoded, scale);
  }
  TIGHTWIRE_INLINE static Ints codes(const Encoded& encoded) { return encoded; }
};

template <class C>
concept StepCodec = BlockCodec<C> && std::same_as<std::remove_cvref_t<decltype(C::range)>, detail::StepRange>;

/// Of a code times a step: the code stays a float, shifted (see `kNearestShift`), from which its integer, its value and
/// the residual are each one or two instructions away.
template <StepCodec C, int W>
struct Arithmetic<C, W> {
  using Floats = Lanes<float, W>;
  using Ints = Lanes<int, W>;
  using Scale = typename C::Scale;
  struct Encoded {
    Floats shifted;
  };

  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, Scale scale) {
    Floats scaled = x * Floats(scale.inverse);
    if constexpr (C::range.low == -C::range.high)
      clamp_magnitude(scaled, Floats(scale.high));
    else
      scaled = greatest(least(scaled, Floats(scale.high)), Floats(scale.low));
    return {scaled + Floats(detail::kNearestShift)};
  }
  TIGHTWIRE_INLINE static Floats value(const Ints& codes, Scale scale) { return C::value(codes, scale); }
  TIGHTWIRE_INLINE static Floats decoded(const Encoded& encoded, Scale scale) {
    return whole(encoded) * Floats(scale.step);
  }
  TIGHTWIRE_INLINE static Floats difference(const Floats& x, const Encoded& encoded, Scale scale) {
    Floats rest = x;
    subtract_exact_product(rest, whole(encoded), Floats(scale.step));
    return rest;
  }
  TIGHTWIRE_INLINE static Ints codes(const Encoded& encoded) {
    using detail::to_bits, detail::as_int;
    const Ints bits = as_int(to_bits(encoded.shifted));
    if constexpr (detail::packs_low_bits<C::bits, W>)
      return bits;
    else
      return bits - Ints(detail::kNearestShiftBits);
  }

 private:
  TIGHTWIRE_INLINE static Floats whole(const Encoded& encoded) {
    return encoded.shifted - Floats(detail::kNearestShift);
  }
};

/// The statistic of a block, fed 4 * W elements at a time. Keys that come as Lanes are integers, none less than 0, of
/// which the statistic wants the largest: they are compared lane by lane first.
template <class Stat, int W>
class Statistic {
  using Key = decltype(Stat::key(1.0f));

 public:
  TIGHTWIRE_INLINE void add(const Lanes<float, W> (&x)[4]) {
    if constexpr (kByLanes) {
      // Two accumulators: one would wait for itself.
      TIGHTWIRE_UNROLL(4)
      for (int i = 0; i < 4; ++i) largest_[i % 2] = greatest(largest_[i % 2], Stat::key(x[i]));
    } else {
      for (int i = 0; i < 4 * W; ++i) stat_.add(Stat::key(x[i / W].v[i % W]));
    }
  }
  TIGHTWIRE_INLINE Stat result() const {
    Stat stat = stat_;
    if constexpr (kByLanes) stat.add(largest_lane(greatest(largest_[0], largest_[1])));
    return stat;
  }

 private:
  static constexpr bool kByLanes = requires(Lanes<float, W> x) {
    { Stat::key(x) } -> std::same_as<Lanes<Key, W>>;
  };
  struct Unused {};
  using Largest = std::conditional_t<kByLanes, Lanes<Key, W>, Unused>;

  Stat stat_{};
  Largest largest_[2] = {};
};

}  // namespace tightwire::host
