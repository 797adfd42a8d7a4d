#pragma once
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <tightwire/codec/concept.hpp>
#include <tightwire/host/coder.hpp>
#include <tightwire/testing/code_check.hpp>
#include <tightwire/testing/data.hpp>

namespace tightwire::testing {

/// What a codec promises beyond the concept. Specialise `Claims` for a codec, derive from this, and restate what
/// differs; the conformance suite then holds the codec to it.
struct DefaultClaims {
  /// Largest |x - decoded x| in a block whose element of largest magnitude is `largest` (signed). Default: no promise
  /// per element, only `C::accuracy` on the whole.
  static double error_bound(double x, double largest) {
    static_cast<void>(x), static_cast<void>(largest);
    return std::numeric_limits<double>::infinity();
  }
  static constexpr bool exact_zero = true;       ///< 0 decodes to 0, whatever else is in its block
  static constexpr bool idempotent = true;       ///< encoding what was decoded gives the same bytes
  static constexpr bool scale_invariant = true;  ///< 2^k x decodes to 2^k times what x does, short of subnormals
  static constexpr bool odd_symmetric = false;   ///< -x decodes to minus what x does
  static constexpr bool keeps_extremes = true;   ///< the largest element of a block decodes to about itself
  static constexpr float largest = FLT_MAX;      ///< largest magnitude that decodes to something finite
  static constexpr float saturation = FLT_MAX;   ///< finite magnitudes beyond decode to it, whatever their block
};
template <BlockCodec C>
struct Claims : DefaultClaims {};

/// Encoded values, as the slow reading of the contract gives them.
struct Encoded {
  std::vector<std::byte> wire;
  std::vector<float> values;  ///< what the wire decodes to, as a buffer of the element type holds it
  std::uint64_t nonfinite = 0;
};

/// A codec by the letter of its contract: one element, one bit at a time, no tiles, no padding lanes, no dispatch.
class ReferenceCodec {
 public:
  virtual ~ReferenceCodec() = default;
  virtual std::size_t wire_bytes(std::size_t count) const = 0;
  virtual Encoded encode(std::span<const float> x, ElementType rounded_to = ElementType::f32,
                         const Noise* noise = nullptr) const = 0;
  virtual std::vector<float> decode(std::span<const std::byte> wire, std::size_t count) const = 0;
};

template <BlockCodec C>
class NaiveCodec final : public ReferenceCodec {
 public:
  explicit NaiveCodec(int block) { codec_.block = block; }

  std::size_t wire_bytes(std::size_t count) const override {
    if constexpr (base_of<C> != 0)
      return codes_at(count) + (count == 0 ? 0 : (digit_at(count - 1).byte / kRunBytes + 1) * kRunBytes);
    return codes_at(count) + (count * kBits + 127) / 128 * 16;
  }

  Encoded encode(std::span<const float> values, ElementType rounded_to, const Noise* noise) const override {
    // What a buffer of the type on the wire cannot hold does not saturate there in silence.
    std::vector<float> x(values.begin(), values.end());
    if (C::lossless(rounded_to) && rounded_to != ElementType::f32)
      for (float& element : x)
        if (!is_finite(rounded(rounded_to, element))) element = rounded(rounded_to, element);
    Encoded result{std::vector<std::byte>(wire_bytes(x.size())), std::vector<float>(x.size())};
    for (std::size_t p = 0; p * part() < x.size(); ++p) {
      const std::size_t end = std::min(x.size(), (p + 1) * part());
      const std::span<const float> elements(x.data() + p * part(), end - p * part());
      const typename C::Stat stat = statistic(elements);
      const SharedOf<C> shared = shared_in(x, p * part() / block());
      if constexpr (kSharedBytes != 0) std::memcpy(result.wire.data() + shared_at(p * part()), &shared, kSharedBytes);
      const bool finite_input = std::all_of(elements.begin(), elements.end(), is_finite);
      typename C::Param param = param_of<C>(stat, shared, noise != nullptr);
      typename C::Scale scale = scale_of<C>(param, shared);
      if constexpr (requires { C::fit(stat, 0u, 0u); }) {
        std::uint32_t products = 0, squares = 0;
        for (std::size_t i = p * part(); i < end; ++i) {
          const auto level = static_cast<std::uint32_t>(ArithmeticOf<C>::level(ArithmeticOf<C>::code(x[i], scale)));
          products += level * static_cast<std::uint32_t>(C::Stat::moment(x[i], stat.inverse_unit()));
          squares += level * level;
        }
        param = C::fit(stat, products, squares);
        scale.step = C::scale(param).step;
      }
      if constexpr (kParamBytes != 0) std::memcpy(result.wire.data() + param_at(p * part()), &param, kParamBytes);
      // Where nothing finite comes back, all elements have the code of 0, whatever NaNs are like on this machine.
      const int zero = ArithmeticOf<C>::code(0.0f, scale);
      const bool lost = kParamBytes != 0 && !stat.finite() && !is_finite(ArithmeticOf<C>::value(zero, scale));
      for (std::size_t i = p * part(); i < end; ++i) {
        put(result.wire, x.size(), i, lost ? zero : code_of(x[i], scale, noise, i));
        result.values[i] = rounded(rounded_to, ArithmeticOf<C>::value(get(result.wire, x.size(), i), scale));
        // Input that is not finite counts, and so does what became so for want of range; what a NaN next to it took
        // along does not.
        const bool out_of_range = !is_finite(result.values[i]) && (finite_input || kParamBytes == 0);
        if (!is_finite(x[i]) || out_of_range) ++result.nonfinite;
      }
    }
    return result;
  }

  std::vector<float> decode(std::span<const std::byte> wire, std::size_t count) const override {
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i) {
      typename C::Param param{};
      SharedOf<C> shared{};
      if constexpr (kParamBytes != 0) std::memcpy(&param, wire.data() + param_at(i), kParamBytes);
      if constexpr (kSharedBytes != 0) std::memcpy(&shared, wire.data() + shared_at(i), kSharedBytes);
      x[i] = ArithmeticOf<C>::value(get(wire, count, i), scale_of<C>(param, shared));
    }
    return x;
  }

 private:
  static constexpr std::size_t kBits = static_cast<std::size_t>(C::bits);
  static constexpr std::size_t kParamBytes = host::kParamBytes<C>;
  static constexpr std::size_t kSharedBytes = host::kSharedBytes<C>;

  static typename C::Stat statistic(std::span<const float> x) {
    typename C::Stat stat{};
    for (const float element : x) {
      stat.add(C::Stat::key(element));
      if constexpr (requires { C::Stat::second_key(1.0f); }) stat.add_second(C::Stat::second_key(element));
    }
    if constexpr (requires { C::Stat::moment(1.0f, 1.0f); }) {
      std::uint32_t units = 0, squares = 0;
      for (const float element : x) {
        const auto moment = static_cast<std::uint32_t>(C::Stat::moment(element, stat.inverse_unit()));
        units += moment, squares += moment * moment;
      }
      stat.add_moments(static_cast<std::uint32_t>(x.size()), units, squares);
    }
    return stat;
  }
  /// Of the finite parts of block `b`.
  SharedOf<C> shared_in(std::span<const float> x, std::size_t b) const {
    typename C::Stat all{};
    if constexpr (kSharedBytes != 0) {
      for (std::size_t at = b * block(); at < std::min(x.size(), (b + 1) * block()); at += part()) {
        const typename C::Stat stat = statistic(x.subspan(at, std::min(part(), x.size() - at)));
        if (stat.finite()) all.join(stat);
      }
    }
    return shared_of<C>(all);
  }
  static int code_of(float x, const typename C::Scale& scale, const Noise* noise, std::size_t i) {
    if constexpr (requires { ArithmeticOf<C>::code(x, scale, 0.0f); })
      if (noise != nullptr) return ArithmeticOf<C>::code(x, scale, detail::noise_at(*noise, noise->first + i));
    return ArithmeticOf<C>::code(x, scale);
  }

  std::size_t block() const { return static_cast<std::size_t>(codec_.block); }
  std::size_t part() const { return static_cast<std::size_t>(part_of(codec_)); }
  /// Where what the block of element `i` shares lies, and its Param.
  std::size_t shared_at(std::size_t i) const { return i / block() * (kSharedBytes + block() / part() * kParamBytes); }
  std::size_t param_at(std::size_t i) const { return shared_at(i) + kSharedBytes + i % block() / part() * kParamBytes; }
  std::size_t codes_at(std::size_t count) const {
    return count == 0 ? 0 : (param_at(count - 1) + kParamBytes + 15) / 16 * 16;
  }
  /// Codes lie end to end, low bits first; moved by single bits, or by bytes where codes are whole bytes.
  static constexpr std::size_t kStride = kBits >= 8 ? 8 : 1;
  static constexpr unsigned kMask = (1u << kStride) - 1;

  /// Of codes that are digits: which byte behind the Params is the low one of the number that has that of element `i`
  /// (a high one is 16 further), and the base to the power of its place there.
  struct DigitAt {
    std::size_t byte;
    unsigned power;
  };
  static constexpr unsigned kBase = static_cast<unsigned>(base_of<C>);
  static constexpr std::size_t kRun = kBase == 6 ? 48 : 80, kRunBytes = kBase == 9 ? 32 : 16;
  DigitAt digit_at(std::size_t i) const {
    const std::size_t within = i % block(), bytes_of_block = (block() + kRun - 1) / kRun * kRunBytes;
    unsigned power = 1;
    for (std::size_t place = within % kRun / 16; place > 0; --place) power *= kBase;
    return {i / block() * bytes_of_block + within / kRun * kRunBytes + within % 16, power};
  }
  unsigned number_at(std::span<const std::byte> wire, std::size_t at) const {
    return std::to_integer<unsigned>(wire[at]) + (kBase == 9 ? 256 * std::to_integer<unsigned>(wire[at + 16]) : 0);
  }

  void put(std::vector<std::byte>& wire, std::size_t count, std::size_t i, int code) const {
    if constexpr (base_of<C> != 0) {
      const auto [behind, power] = digit_at(i);
      const std::size_t at = codes_at(count) + behind;
      const unsigned number = number_at(wire, at) + power * static_cast<unsigned>(code < 0 ? code + base_of<C> : code);
      wire[at] = static_cast<std::byte>(number);
      if constexpr (kBase == 9) wire[at + 16] = static_cast<std::byte>(number >> 8);
      return;
    }
    for (std::size_t bit = 0; bit < kBits; bit += kStride) {
      const std::size_t at = 8 * codes_at(count) + i * kBits + bit;
      wire[at / 8] |= static_cast<std::byte>((static_cast<unsigned>(code) >> bit & kMask) << at % 8);
    }
  }
  int get(std::span<const std::byte> wire, std::size_t count, std::size_t i) const {
    if constexpr (base_of<C> != 0) {
      const auto [behind, power] = digit_at(i);
      const auto digit = static_cast<int>(number_at(wire, codes_at(count) + behind) / power % kBase);
      return digit > (base_of<C> - 1) / 2 ? digit - base_of<C> : digit;
    }
    unsigned code = 0;
    for (std::size_t bit = 0; bit < kBits; bit += kStride) {
      const std::size_t at = 8 * codes_at(count) + i * kBits + bit;
      code |= (std::to_integer<unsigned>(wire[at / 8]) >> at % 8 & kMask) << bit;
    }
    // Codes of up to eight bits are signed.
    if constexpr (kBits <= 8)
      if ((code >> (kBits - 1) & 1u) != 0) code -= 1u << kBits;
    return static_cast<int>(code);
  }

  C codec_{};
};

/// The residual after a step: what the values could not carry; as before where they are not finite.
inline std::vector<float> residual_after(std::span<const float> x, std::span<const float> values,
                                         std::span<const float> before) {
  std::vector<float> after(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) after[i] = is_finite(values[i]) ? x[i] - values[i] : before[i];
  return after;
}
inline std::vector<float> sum(std::span<const float> x, std::span<const float> y) {
  std::vector<float> z(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) z[i] = x[i] + y[i];
  return z;
}

/// Input of one combine, with plain vectors for buffers. Without residuals: no error feedback.
struct CombineInput {
  ElementType type = ElementType::f32;
  std::vector<std::vector<float>> contributions;  ///< per rank, before encoding; `own` as the buffer holds it
  std::size_t own = 0;
  std::optional<std::vector<float>> sender;
  std::optional<std::vector<float>> owner;
  float divisor = 1;
  bool encoded = true;
  const Noise* sender_noise = nullptr;
  const Noise* owner_noise = nullptr;
};
struct CombineOutput {
  std::vector<std::byte> wire;
  std::vector<float> out, sender, owner;
  Coder::NonFinite nonfinite;
};

/// Decode, add in rank order, divide, add the residual, encode. `decoded` holds what each rank's wire decodes to, that
/// of our own aside.
inline CombineOutput reference_combine(const ReferenceCodec& codec, const CombineInput& input,
                                       const std::vector<std::vector<float>>& decoded) {
  CombineOutput output;
  std::vector<float> mine = input.contributions[input.own];
  if (input.sender) mine = sum(mine, *input.sender);
  const Encoded contribution = codec.encode(mine, ElementType::f32, input.sender_noise);
  output.nonfinite.contribution = contribution.nonfinite;
  if (input.sender) output.sender = residual_after(mine, contribution.values, *input.sender);

  std::vector<float> total;
  for (std::size_t rank = 0; rank < decoded.size(); ++rank) {
    const std::vector<float>& next = rank == input.own ? contribution.values : decoded[rank];
    total = rank == 0 ? next : sum(total, next);
  }
  for (float& x : total) x /= input.divisor;
  if (!input.encoded) {
    for (const float x : total) {
      output.out.push_back(rounded(input.type, std::isnan(x) ? detail::from_bits(0x7fc00000u) : x));
      if (!is_finite(output.out.back())) ++output.nonfinite.result;
    }
    return output;
  }
  if (input.owner) total = sum(total, *input.owner);
  const Encoded result = codec.encode(total, input.type, input.owner_noise);
  output.wire = result.wire;
  output.out = result.values;
  output.nonfinite.result = result.nonfinite;
  if (input.owner) output.owner = residual_after(total, result.values, *input.owner);
  return output;
}

/// A codec and what is claimed of it without its type, so that the checks are compiled once and not per codec.
struct Subject {
  std::string name;
  int bits = 0;
  int base = 0;                  ///< not 0: codes take as many values, and are digits
  std::size_t param_bytes = 0;   ///< per part
  std::size_t shared_bytes = 0;  ///< per block
  std::size_t part = 0;          ///< elements
  int block = 0;
  double accuracy = 0;
  bool exact_zero = true, idempotent = true, scale_invariant = true, odd_symmetric = false;
  bool keeps_extremes = true;
  bool stochastic = false;  ///< has a choice of rounding
  float largest = 0;
  float saturation = 0;
  double (*error_bound)(double x, double largest) = nullptr;
  std::unique_ptr<Coder> (*coder_at)(int block, host::Level level) = nullptr;
  std::unique_ptr<ReferenceCodec> (*reference_at)(int block) = nullptr;
  void (*check_code_is_total)() = nullptr;

  std::unique_ptr<Coder> coder(host::Level level = host::supported_level()) const { return coder_at(block, level); }
  std::unique_ptr<ReferenceCodec> reference() const { return reference_at(block); }
};

template <BlockCodec C>
Subject subject() {
  Subject s;
  s.name = std::string(C::name);
  s.bits = C::bits;
  s.base = base_of<C>;
  s.param_bytes = host::kParamBytes<C>;
  s.shared_bytes = host::kSharedBytes<C>;
  s.part = static_cast<std::size_t>(part_of(C{}));
  s.block = C{}.block;
  s.accuracy = static_cast<double>(C::accuracy);
  s.exact_zero = Claims<C>::exact_zero;
  s.idempotent = Claims<C>::idempotent;
  s.scale_invariant = Claims<C>::scale_invariant;
  s.odd_symmetric = Claims<C>::odd_symmetric;
  s.keeps_extremes = Claims<C>::keeps_extremes;
  s.stochastic = requires(C codec) { codec.round; };
  s.largest = Claims<C>::largest;
  s.saturation = Claims<C>::saturation;
  s.error_bound = [](double x, double largest) { return Claims<C>::error_bound(x, largest); };
  s.coder_at = [](int block, host::Level level) -> std::unique_ptr<Coder> {
    C codec;
    codec.block = block;
    return std::make_unique<HostCoder<C>>(codec, level);
  };
  s.reference_at = [](int block) -> std::unique_ptr<ReferenceCodec> { return std::make_unique<NaiveCodec<C>>(block); };
  s.check_code_is_total = &check_code_is_total<C>;
  return s;
}

inline std::vector<host::Level> levels() {
  std::vector<host::Level> all;
  for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512})
    if (level <= host::supported_level()) all.push_back(level);
  return all;
}

}  // namespace tightwire::testing
