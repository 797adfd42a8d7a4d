#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/codec/dense.hpp>
#include <tightwire/codec/stat.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/host/packing.hpp>

namespace tightwire::host {

/// Blocks are multiples of the smallest tile, up to this many elements.
inline constexpr int kSmallestTile = 16;
inline constexpr int kMaxBlock = 4096;

/// Elements ahead of the current one at which memory is asked for: worth a quarter of the time out of cache.
inline constexpr std::size_t kPrefetchDistance = 1024;

template <class T, int Count>
TIGHTWIRE_INLINE void prefetch(const T* at) {
  constexpr int kPerLine = 64 / sizeof(T);
  const auto address = reinterpret_cast<std::uintptr_t>(at) + kPrefetchDistance * sizeof(T);
  for (int i = 0; i < Count; i += kPerLine)
    __builtin_prefetch(reinterpret_cast<const void*>(address + static_cast<std::uintptr_t>(i) * sizeof(T)));
}

/// The loops around a codec's arithmetic. A block of at most kMaxBlock elements lives in `x` between its statistic, its
/// codes and its new residual, so that memory is passed over once. Work goes by tiles of a compile-time size: such loops
/// vectorise at -O2 under g++ and clang alike. A short last block is padded up to the tile, and what is in the padding
/// enters no statistic and no output.
template <BlockCodec C, ElementType Type, int Tile>
struct Loops {
  using Element = detail::Element<Type>;
  using Storage = typename Element::Storage;
  using Unit = CodeUnit<C::bits>;
  using Stat = typename C::Stat;
  using Scale = typename C::Scale;

  TIGHTWIRE_INLINE static void load(const Storage* data, float* x, std::size_t count) {
    std::size_t i = 0;
    for (; i + Tile <= count; i += Tile) {
      prefetch<Storage, Tile>(data + i);
      for (int j = 0; j < Tile; ++j) x[i + j] = Element::load(data[i + j]);
    }
    if (i == count) return;
    for (int j = 0; j < Tile; ++j) x[i + j] = 0.0f;
    for (; i < count; ++i) x[i] = Element::load(data[i]);
  }

  TIGHTWIRE_INLINE static void store(const float* x, Storage* out, std::size_t count) {
    std::size_t i = 0;
    for (; i + Tile <= count; i += Tile)
      for (int j = 0; j < Tile; ++j) out[i + j] = Element::store(x[i + j]);
    for (; i < count; ++i) out[i] = Element::store(x[i]);
  }

  TIGHTWIRE_INLINE static void add(const float* residual, float* x, std::size_t count) {
    std::size_t i = 0;
    for (; i + Tile <= count; i += Tile) {
      prefetch<float, Tile>(residual + i);
      for (int j = 0; j < Tile; ++j) x[i + j] += residual[i + j];
    }
    for (; i < count; ++i) x[i] += residual[i];
  }

  TIGHTWIRE_INLINE static Stat stat(const float* x, std::size_t count) {
    Stat all{};
    std::size_t i = 0;
    for (; i + Tile <= count; i += Tile) {
      Stat tile{};
      for (int j = 0; j < Tile; ++j) tile.add(Stat::key(x[i + j]));
      all.add(tile.bits);
    }
    for (; i < count; ++i) all.add(Stat::key(x[i]));
    return all;
  }

  /// Codes of one tile to the wire; the last tile of a slice may have fewer than Tile.
  TIGHTWIRE_INLINE static void put(const Unit* codes, std::size_t count, std::byte* wire) {
    if (count == Tile) {
      pack<C::bits, Tile>(codes, wire);
    } else {
      std::byte bytes[Tile * sizeof(Unit)];
      pack<C::bits, Tile>(codes, bytes);
      if (C::bits == 4 && count % 2 != 0) bytes[count / 2] &= std::byte{0x0f};
      std::memcpy(wire, bytes, code_bytes(C::bits, count));
    }
  }
  TIGHTWIRE_INLINE static void get(const std::byte* wire, std::size_t count, Unit* codes) {
    if (count == Tile) {
      unpack<C::bits, Tile>(wire, codes);
    } else {
      std::byte bytes[Tile * sizeof(Unit)] = {};
      std::memcpy(bytes, wire, code_bytes(C::bits, count));
      unpack<C::bits, Tile>(bytes, codes);
    }
  }

  /// x -> codes on the wire (where there is one), and x := its decoded value, as a buffer of the element type will hold it
  /// if Round. The residual takes the difference.
  template <bool Round, bool Wire, bool Feedback>
  TIGHTWIRE_INLINE static void quantize(float* x, std::size_t count, Scale scale, std::byte* wire, float* after) {
    for (std::size_t i = 0; i < count; i += Tile) {
      Unit codes[Tile];
      float difference[Tile];
      for (int j = 0; j < Tile; ++j) {
        const int code = C::code(x[i + j], scale);
        float value = C::value(code, scale);
        if constexpr (Round && Type != ElementType::f32) value = Element::load(Element::store(value));
        codes[j] = static_cast<Unit>(code);
        difference[j] = x[i + j] - value;
        x[i + j] = value;
      }
      const std::size_t valid = count - i < Tile ? count - i : Tile;
      if constexpr (Wire) put(codes, valid, wire + i * C::bits / 8);
      if constexpr (Feedback) std::memcpy(after + i, difference, valid * sizeof(float));
    }
  }

  /// As `quantize` for a block with a NaN, an infinity or an overflow of the wire type. What decodes to a finite value is
  /// treated as ever; elsewhere the residual stays as it was before this block, as if the step had not happened. Returns
  /// the number of non-finite elements.
  template <bool Round>
  [[gnu::noinline, gnu::cold]] static std::uint64_t quantize_nonfinite(float* x, std::size_t count, Scale scale,
                                                                       std::byte* wire, Residual residual) {
    bool finite_block = true;
    for (std::size_t i = 0; i < count; ++i)
      finite_block = finite_block && AbsMax::key(x[i]) < static_cast<int>(detail::kInfinityBits);
    std::uint64_t nonfinite = 0;
    for (std::size_t i = 0; i < count; i += Tile) {
      Unit codes[Tile] = {};
      const std::size_t valid = count - i < Tile ? count - i : Tile;
      for (std::size_t j = 0; j < valid; ++j) {
        const float element = x[i + j];
        const int code = C::code(element, scale);
        float value = C::value(code, scale);
        if constexpr (Round) value = Element::load(Element::store(value));
        codes[j] = static_cast<Unit>(code);
        x[i + j] = value;
        const bool finite = (detail::to_bits(value) & detail::kMagnitudeMask) < detail::kInfinityBits;
        const bool input = (detail::to_bits(element) & detail::kMagnitudeMask) < detail::kInfinityBits;
        // A quantized block with one NaN decodes to NaN all over; only what caused it is counted.
        if (!input || (!finite && (finite_block || kParamBytes<C> == 0))) ++nonfinite;
        if (residual) residual.after[i + j] = finite ? element - value : residual.before[i + j];
      }
      if (wire != nullptr) put(codes, valid, wire + i * C::bits / 8);
    }
    return nonfinite;
  }

  /// Whether a 16-bit buffer might not hold what the block decodes to (which is at most twice its largest element).
  TIGHTWIRE_INLINE static bool may_overflow(const float* x, std::size_t count) {
    if constexpr (Type == ElementType::f32) return false;
    constexpr int kHalfOfLargest = Type == ElementType::bf16 ? 0x7eff0000 : 0x46ffe000;
    AbsMax largest;
    for (std::size_t i = 0; i < count; i += Tile)
      for (int j = 0; j < Tile; ++j) largest.add(AbsMax::key(x[i + j]));
    return largest.bits >= kHalfOfLargest;
  }

  /// Elements of a sum that a buffer of the element type does not hold as a finite value. Makes all NaNs the one: which of
  /// two an addition keeps depends on the order of operands that the compiler chose, and thus on our place among the ranks.
  TIGHTWIRE_INLINE static std::uint64_t nonfinite_sums(float* x, std::size_t count) {
    AbsMax largest;
    for (std::size_t i = 0; i < count; i += Tile)
      for (int j = 0; j < Tile; ++j) largest.add(AbsMax::key(x[i + j]));
    return largest.bits < kOverflow ? 0 : settle_nonfinite(x, count);
  }
  [[gnu::noinline, gnu::cold]] static std::uint64_t settle_nonfinite(float* x, std::size_t count) {
    std::uint64_t overflows = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (AbsMax::key(x[i]) >= kOverflow) ++overflows;
      if (AbsMax::key(x[i]) > static_cast<int>(detail::kInfinityBits)) x[i] = detail::from_bits(0x7fc00000u);
    }
    return overflows;
  }
  /// Magnitude from which a value rounds to infinity in a buffer.
  static constexpr int kOverflow = DenseAs<Type>::Stat::kOverflow;

  /// One block of values in x -> wire, x := decoded values, residual := difference.
  template <bool Round>
  TIGHTWIRE_INLINE static std::uint64_t encode_block(float* x, std::size_t count, std::byte* param_at, std::byte* codes_at,
                                                     Residual residual) {
    const Stat block = stat(x, count);
    const typename C::Param param = C::param(block);
    const Scale scale = C::scale(param);
    if (param_at != nullptr) std::memcpy(param_at, &param, kParamBytes<C>);
    if (!block.finite() || (Round && may_overflow(x, count))) [[unlikely]]
      return quantize_nonfinite<Round>(x, count, scale, codes_at, residual);
    if (codes_at != nullptr) {
      if (residual)
        quantize<Round, true, true>(x, count, scale, codes_at, residual.after);
      else
        quantize<Round, true, false>(x, count, scale, codes_at, nullptr);
    } else if (residual) {
      quantize<Round, false, true>(x, count, scale, nullptr, residual.after);
    } else {
      quantize<Round, false, false>(x, count, scale, nullptr, nullptr);
    }
    return 0;
  }

  /// Values of one encoded block: x := or += value.
  template <bool Add>
  TIGHTWIRE_INLINE static void decode_block(const std::byte* param_at, const std::byte* codes_at, std::size_t count,
                                            float* x) {
    typename C::Param param{};
    std::memcpy(&param, param_at, kParamBytes<C>);
    const Scale scale = C::scale(param);
    for (std::size_t i = 0; i < count; i += Tile) {
      Unit codes[Tile];
      get(codes_at + i * C::bits / 8, count - i < Tile ? count - i : Tile, codes);
      for (int j = 0; j < Tile; ++j) {
        const float value = C::value(static_cast<int>(codes[j]), scale);
        x[i + j] = Add ? x[i + j] + value : value;
      }
    }
  }

  static Residual advance(Residual residual, std::size_t by) {
    return residual ? Residual{residual.before + by, residual.after + by} : Residual{};
  }

  /// The padding of both parts of an encoded slice, so that equal slices are equal bytes.
  static void clear_padding(const C& codec, std::size_t count, std::byte* wire) {
    if (count == 0) return;  // there may be no wire
    const auto shape = layout(codec, count);
    const std::size_t params = shape.blocks * kParamBytes<C>;
    const std::size_t codes = shape.codes_at + code_bytes(C::bits, count);
    std::memset(wire + params, 0, shape.codes_at - params);
    std::memset(wire + codes, 0, shape.bytes - codes);
  }

  TIGHTWIRE_INLINE static std::uint64_t encode(const C& codec, const Coder::Encode& job) {
    const auto* data = static_cast<const Storage*>(job.data);
    const auto block = static_cast<std::size_t>(codec.block);
    const std::size_t codes_at = layout(codec, job.count).codes_at;
    alignas(64) float x[kMaxBlock];
    std::uint64_t nonfinite = 0;
    clear_padding(codec, job.count, job.wire);
    for (std::size_t b = 0, at = 0; at < job.count; ++b, at += block) {
      const std::size_t count = job.count - at < block ? job.count - at : block;
      load(data + at, x, count);
      if (job.residual) add(job.residual.before + at, x, count);
      nonfinite += encode_block<false>(x, count, job.wire + b * kParamBytes<C>, job.wire + codes_at + at * C::bits / 8,
                                       advance(job.residual, at));
    }
    return nonfinite;
  }

  TIGHTWIRE_INLINE static void divide(float* x, std::size_t count, float divisor) {
    const auto whole = static_cast<unsigned>(divisor);
    if (whole == 1) return;
    if (std::has_single_bit(whole)) {
      // Exact, and therefore safe from contraction with the addition of the residual.
      const float factor = 1.0f / divisor;
      for (std::size_t i = 0; i < count; i += Tile)
        for (int j = 0; j < Tile; ++j) x[i + j] *= factor;
    } else {
      for (std::size_t i = 0; i < count; i += Tile)
        for (int j = 0; j < Tile; ++j) x[i + j] /= divisor;
    }
  }

  TIGHTWIRE_INLINE static Coder::NonFinite combine(const C& codec, const Coder::Combine& job) {
    const auto* data = static_cast<const Storage*>(job.data);
    auto* out = static_cast<Storage*>(job.out);
    const auto block = static_cast<std::size_t>(codec.block);
    const std::size_t codes_at = layout(codec, job.count).codes_at;
    alignas(64) float x[kMaxBlock];
    alignas(64) float own[kMaxBlock];
    Coder::NonFinite met;
    if (job.wire != nullptr) clear_padding(codec, job.count, job.wire);
    for (std::size_t b = 0, at = 0; at < job.count; ++b, at += block) {
      const std::size_t count = job.count - at < block ? job.count - at : block;
      const std::size_t param_at = b * kParamBytes<C>;
      const std::size_t code_at = codes_at + at * C::bits / 8;
      for (std::size_t k = 0; k < job.sources.size(); ++k) {
        const std::byte* source = job.sources[k];
        if (source != nullptr) {
          if (k == 0)
            decode_block<false>(source + param_at, source + code_at, count, x);
          else
            decode_block<true>(source + param_at, source + code_at, count, x);
          continue;
        }
        float* mine = k == 0 ? x : own;
        load(data + at, mine, count);
        if (job.sender) add(job.sender.before + at, mine, count);
        met.contribution += encode_block<false>(mine, count, nullptr, nullptr, advance(job.sender, at));
        if (k != 0)
          for (std::size_t i = 0; i < count; i += Tile)
            for (int j = 0; j < Tile; ++j) x[i + j] += own[i + j];
      }
      divide(x, count, job.divisor);
      if (job.wire != nullptr) {
        if (job.owner) add(job.owner.before + at, x, count);
        met.result += encode_block<true>(x, count, job.wire + param_at, job.wire + code_at, advance(job.owner, at));
      } else {
        met.result += nonfinite_sums(x, count);
      }
      store(x, out + at, count);
    }
    return met;
  }

  TIGHTWIRE_INLINE static void decode(const C& codec, const std::byte* wire, std::size_t count, Storage* out) {
    const auto block = static_cast<std::size_t>(codec.block);
    const std::size_t codes_at = layout(codec, count).codes_at;
    alignas(64) float x[kMaxBlock];
    for (std::size_t b = 0, at = 0; at < count; ++b, at += block) {
      const std::size_t valid = count - at < block ? count - at : block;
      decode_block<false>(wire + b * kParamBytes<C>, wire + codes_at + at * C::bits / 8, valid, x);
      store(x, out + at, valid);
    }
  }
};

}  // namespace tightwire::host
