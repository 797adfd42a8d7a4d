#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <tightwire/codec/rounding.hpp>
#include <tightwire/element.hpp>

namespace tightwire {

namespace detail {
template <class C>
struct ArithmeticOf {
  using Type = C;
};
template <class C>
requires requires { typename C::Arithmetic; }
struct ArithmeticOf<C> {
  using Type = typename C::Arithmetic;
};
/// Not both an Arithmetic and a `code` or `value` beside it, which nobody would call.
template <class C>
inline constexpr bool has_one_arithmetic = std::is_same_v<typename ArithmeticOf<C>::Type, C> ||
                                           !(
                                               requires(typename C::Scale scale) { C::value(0, scale); } ||
                                               requires(typename C::Scale scale) { C::code(0.0f, scale); });

/// A Param and a Scale for every block.
template <class C>
concept BlocksWhole = requires(typename C::Stat stat, typename C::Param param) {
  { C::param(stat) } -> std::same_as<typename C::Param>;
  { C::scale(param) } -> std::same_as<typename C::Scale>;
};
/// A Param and a Scale for every part of a block.
template <class C>
concept BlocksInParts = requires(typename C::Stat stat, typename C::Param param, typename C::Shared shared) {
  { C::part } -> std::convertible_to<int>;  // a multiple of 16 that divides the block
  {stat.join(stat)};
  { C::shared(stat) } -> std::same_as<typename C::Shared>;
  { C::param(stat, shared) } -> std::same_as<typename C::Param>;
  { C::scale(param, shared) } -> std::same_as<typename C::Scale>;
};
template <class C>
struct SharedOf {
  struct Type {};
};
template <BlocksInParts C>
struct SharedOf<C> {
  using Type = typename C::Shared;
};

}  // namespace detail

/// Where `code` and `value` of a codec are: in `C::Arithmetic`, for which loops are compiled once however many codecs
/// share it, or in the codec itself.
template <class C>
using ArithmeticOf = typename detail::ArithmeticOf<C>::Type;

/// Arithmetic of a block quantizer, one element at a time. Loops, packing, error feedback, CPU dispatch, collectives
/// and the conformance tests follow from these names; `codec/sign.hpp` is an example to copy.
///
/// May have beside: `Stat::second_key`, `Stat::moment` (stat.hpp), `Arithmetic` (above), `round` and an
/// `Arithmetic::code` with noise (rounding.hpp; then `unbiased_param`, if scales must be others for nothing to be
/// clipped), `Arithmetic::finite_code` (the same as `code` in fewer operations, of elements of a finite block),
/// `base` (codes take 3, 6 or 9 values, -(base / 2) the least, and are digits on the wire: detail/digits.hpp; `bits` is
/// what they take between the loops, 2 or 4).
///
/// A block of `block` elements shares one Param. Encoding forms the Stat of the block from the keys of its elements,
/// turns it into the Param that goes on the wire, the Param into the Scale that stays in registers, and each element
/// into a code of `bits` bits. Decoding needs Param and codes alone, and must give a value for any bytes.
///
/// Blocks may consist of parts, see `codec/nvfp4.hpp`: `part` elements have a Param and a Scale, and all parts of a
/// block a Shared. Then Shared is made of the Stat of the finite parts together, and `param` and `scale` take it too.
template <class C>
concept BlockCodec = std::is_trivially_copyable_v<C> && std::default_initializable<C> &&
    requires(const C codec, typename C::Stat stat, typename C::Param param, typename C::Scale scale, float x,
             int code) {
  { C::name } -> std::convertible_to<std::string_view>;
  { C::bits } -> std::convertible_to<int>;                   // bits per element on the wire: 1 to 8, 16 or 32
  { codec.block } -> std::convertible_to<int>;               // elements that share one Param
  {stat.add(C::Stat::key(x))};                               // order-free: integer maxima, see stat.hpp
  { stat.finite() } -> std::same_as<bool>;                   // false: a NaN, an infinity, or more than Param can carry
  { ArithmeticOf<C>::code(x, scale) } -> std::same_as<int>;  // never undefined, whatever x and scale are
  { ArithmeticOf<C>::value(code, scale) } -> std::same_as<float>;  // up to 8 bits, the top bit comes back extended
  { C::lossless(ElementType::f32) } -> std::same_as<bool>;  // carries every finite element of such a buffer exactly
  { C::accuracy } -> std::convertible_to<float>;            // relative error (root of NMSE) promised on Gaussian input
} &&((C::bits >= 1 && C::bits <= 8) || C::bits == 16 || C::bits == 32) &&
    std::is_trivially_copyable_v<typename C::Param>&& detail::has_one_arithmetic<C> &&
    (detail::BlocksWhole<C> || detail::BlocksInParts<C>);

/// How many values codes that are digits on the wire take; 0: codes are fields of `bits` bits.
template <class C>
inline constexpr int base_of = 0;
template <class C>
requires requires { C::base; }
inline constexpr int base_of<C> = C::base;

/// What the parts of a block have in common on the wire; empty where a block is one part.
template <class C>
using SharedOf = typename detail::SharedOf<C>::Type;
template <BlockCodec C>
constexpr int part_of(const C& codec) {
  if constexpr (detail::BlocksInParts<C>)
    return C::part;
  else
    return codec.block;
}
template <BlockCodec C>
TIGHTWIRE_HD constexpr SharedOf<C> shared_of(const typename C::Stat& stat) {
  if constexpr (detail::BlocksInParts<C>)
    return C::shared(stat);
  else
    return {};
}
/// `unbiased`: for stochastic rounding.
template <BlockCodec C>
TIGHTWIRE_HD constexpr typename C::Param param_of(const typename C::Stat& stat, SharedOf<C> shared, bool unbiased) {
  if constexpr (requires { C::unbiased_param(stat, shared); })
    return unbiased ? C::unbiased_param(stat, shared) : C::param(stat, shared);
  else if constexpr (detail::BlocksInParts<C>)
    return C::param(stat, shared);
  else if constexpr (requires { C::unbiased_param(stat); })
    return unbiased ? C::unbiased_param(stat) : C::param(stat);
  else
    return C::param(stat);
}
template <BlockCodec C>
TIGHTWIRE_HD constexpr typename C::Scale scale_of(const typename C::Param& param, SharedOf<C> shared) {
  if constexpr (detail::BlocksInParts<C>)
    return C::scale(param, shared);
  else
    return C::scale(param);
}

}  // namespace tightwire
