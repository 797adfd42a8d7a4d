#pragma once
#include <concepts>
#include <limits>
#include <type_traits>

#include <tightwire/codec/concept.hpp>
#include <tightwire/codec/small_float.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/codec/step.hpp>
#include <tightwire/detail/lanes.hpp>
#include <tightwire/detail/pack.hpp>

namespace tightwire::host {

using detail::Lanes;

/// Codes and values of W elements: by functions that take Lanes (written with `auto`, as in the built-in codecs), else
/// one element after the other. Elements are finite: parts that are not are worked on apart. `Encoded` is what encoding
/// leaves in registers.
template <class A, int W>
struct Arithmetic {
  using Floats = Lanes<float, W>;
  using Ints = Lanes<int, W>;
  using Scale = typename A::Scale;
  using Encoded = Ints;

  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale) {
    if constexpr (requires { A::finite_code(x, scale); }) {
      return A::finite_code(x, scale);
    } else if constexpr (requires {
                           { A::code(x, scale) } -> std::same_as<Ints>;
                         }) {
      return A::code(x, scale);
    } else {
      Ints codes;
      for (int i = 0; i < W; ++i) codes.v[i] = A::code(x.v[i], scale);
      // Into the range that packing takes, without a change to the bits that go on the wire.
      if constexpr (requires { A::bits; })
        if constexpr (A::bits <= 8) codes = codes << (32 - A::bits) >> (32 - A::bits);
      return codes;
    }
  }
  /// Stochastically, if the codec can.
  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale, const Floats& noise) {
    if constexpr (requires { A::code(x, scale, noise); })
      return A::code(x, scale, noise);
    else
      return encode(x, scale);
  }
  TIGHTWIRE_INLINE static Floats value(const Ints& codes, const Scale& scale) {
    if constexpr (requires {
                    { A::value(codes, scale) } -> std::same_as<Floats>;
                  }) {
      return A::value(codes, scale);
    } else {
      Floats x;
      for (int i = 0; i < W; ++i) x.v[i] = A::value(codes.v[i], scale);
      return x;
    }
  }
  TIGHTWIRE_INLINE static Floats decoded(const Encoded& encoded, const Scale& scale) { return value(encoded, scale); }
  /// x - decoded
  TIGHTWIRE_INLINE static Floats difference(const Floats& x, const Encoded& encoded, const Scale& scale) {
    return x - value(encoded, scale);
  }
  TIGHTWIRE_INLINE static Ints codes(const Encoded& encoded) { return encoded; }
};

/// Of a code times a step: the code is kept as a float too, from which its value and the residual are one instruction
/// away.
template <bool Symmetric, int W>
struct Arithmetic<detail::StepArithmetic<Symmetric>, W> {
  using Floats = Lanes<float, W>;
  using Ints = Lanes<int, W>;
  using Scale = detail::StepScale;
  struct Encoded {
    Ints code;
    Floats whole;
  };

  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale) {
    Floats scaled = x * Floats(scale.inverse);
    clamp(scaled, scale);
    return nearest(scaled);
  }
  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale, const Floats& noise) {
    Floats scaled = x * Floats(scale.inverse);
    clamp(scaled, scale);
    return nearest(scaled + noise);
  }
  /// Whether elements up to `largest` have the lowest code or one above it, and if symmetric the highest or one below,
  /// without a clamp.
  TIGHTWIRE_INLINE static bool within(float largest, const Scale& scale) {
    return largest * (scale.inverse < 0.0f ? -scale.inverse : scale.inverse) < 0.5f - scale.low;
  }
  /// Of such elements.
  TIGHTWIRE_INLINE static Encoded encode_within(const Floats& x, const Scale& scale) {
    Floats scaled = x * Floats(scale.inverse);
    if constexpr (Symmetric)
      settle(scaled);
    else
      scaled = least(scaled, Floats(scale.high));
    return nearest(scaled);
  }
  TIGHTWIRE_INLINE static Floats value(const Ints& codes, const Scale& scale) {
    return to_float(codes) * Floats(scale.step);
  }
  TIGHTWIRE_INLINE static Floats decoded(const Encoded& encoded, const Scale& scale) {
    return encoded.whole * Floats(scale.step);
  }
  TIGHTWIRE_INLINE static Floats difference(const Floats& x, const Encoded& encoded, const Scale& scale) {
    Floats rest = x;
    subtract_exact_product(rest, encoded.whole, Floats(scale.step));
    return rest;
  }
  TIGHTWIRE_INLINE static Ints codes(const Encoded& encoded) { return encoded.code; }

 private:
  TIGHTWIRE_INLINE static void clamp(Floats& scaled, const Scale& scale) {
    if constexpr (Symmetric)
      clamp_magnitude(scaled, Floats(scale.high));
    else
      scaled = greatest(least(scaled, Floats(scale.high)), Floats(scale.low));
  }
  TIGHTWIRE_INLINE static Encoded nearest(const Floats& scaled) {
    Encoded encoded;
    nearest_integer(scaled, encoded.code, encoded.whole);
    return encoded;
  }
};

/// Of a small float times a step: what it was rounded to is kept beside its code, which need not be decoded then.
template <class Format, int W>
struct Arithmetic<detail::SmallFloatArithmetic<Format>, W> {
  using Floats = Lanes<float, W>;
  using Ints = Lanes<int, W>;
  using Scale = typename detail::SmallFloatArithmetic<Format>::Scale;
  struct Encoded {
    Floats unscaled;
    Ints code;
  };

  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale) {
    const Floats t = x * Floats(scale.inverse);
    return {Format::nearest_value(t), Format::nearest_code(t)};
  }
  TIGHTWIRE_INLINE static Encoded encode(const Floats& x, const Scale& scale, const Floats& noise) {
    const Ints code = Format::stochastic_code(x * Floats(scale.inverse), noise);
    return {Format::decoded(code), code};
  }
  TIGHTWIRE_INLINE static Floats value(const Ints& codes, const Scale& scale) {
    return detail::SmallFloatArithmetic<Format>::one_nan(Format::decoded(codes) * Floats(scale.step));
  }
  TIGHTWIRE_INLINE static Floats decoded(const Encoded& encoded, const Scale& scale) {
    return encoded.unscaled * Floats(scale.step);
  }
  TIGHTWIRE_INLINE static Floats difference(const Floats& x, const Encoded& encoded, const Scale& scale) {
    Floats rest = x;
    subtract_exact_product(rest, encoded.unscaled, Floats(scale.step));
    return rest;
  }
  TIGHTWIRE_INLINE static Ints codes(const Encoded& encoded) { return encoded.code; }
};

/// The statistic of a part, fed N * W elements at a time. Keys that come as Lanes are integers, of which the statistic
/// wants the largest: they are compared lane by lane first. A statistic may want the largest of a second key too.
template <class Stat, int W>
class Statistic {
  using Key = decltype(Stat::key(1.0f));

 public:
  template <int N>
  TIGHTWIRE_INLINE void add(const Lanes<float, W> (&x)[N]) {
    if constexpr (kByLanes) {
      // Two accumulators: one would wait for itself.
      TIGHTWIRE_UNROLL(4)
      for (int i = 0; i < N; ++i) {
        largest_[i % 2] = greatest(largest_[i % 2], Stat::key(x[i]));
        if constexpr (kTwoKeys) second_[i % 2] = greatest(second_[i % 2], Stat::second_key(x[i]));
      }
    } else {
      for (int i = 0; i < N * W; ++i) {
        stat_.add(Stat::key(x[i / W].v[i % W]));
        if constexpr (kTwoKeys) stat_.add_second(Stat::second_key(x[i / W].v[i % W]));
      }
    }
  }
  TIGHTWIRE_INLINE Stat result() const {
    Stat stat = stat_;
    if constexpr (kByLanes) stat.add(largest_lane(greatest(largest_[0], largest_[1])));
    if constexpr (kByLanes && kTwoKeys) stat.add_second(largest_lane(greatest(second_[0], second_[1])));
    return stat;
  }

 private:
  static constexpr bool kTwoKeys = requires { Stat::second_key(1.0f); };
  static constexpr bool kByLanes = requires(Lanes<float, W> x) {
    { Stat::key(x) } -> std::same_as<Lanes<Key, W>>;
  };
  struct Unused {};
  using Largest = std::conditional_t<kByLanes, Lanes<Key, W>, Unused>;
  using Second = std::conditional_t<kByLanes && kTwoKeys, Lanes<Key, W>, Unused>;
  /// What every key is as large as.
  template <class Keys>
  TIGHTWIRE_INLINE static Keys lowest() {
    if constexpr (std::is_same_v<Keys, Unused>)
      return {};
    else
      return Keys(std::numeric_limits<Key>::min());
  }

  Stat stat_{};
  Largest largest_[2] = {lowest<Largest>(), lowest<Largest>()};
  Second second_[2] = {lowest<Second>(), lowest<Second>()};
};

}  // namespace tightwire::host
