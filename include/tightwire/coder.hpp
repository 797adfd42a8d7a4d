#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tightwire/element.hpp>
#include <tightwire/noise.hpp>

namespace tightwire {

/// Errors kept in 16 bits each, half of what fp32 takes. They are rounded at random, up or down, so that on average
/// nothing is lost: to nearest, whatever is less than half a unit of a residual's last place would be lost in every
/// step.
struct Bf16Residual {
  const std::uint16_t* before = nullptr;
  std::uint16_t* after = nullptr;
  Noise rounding = {};  ///< where the random bits come from; of other ones than codes are rounded with
};

/// Where the error of a slice is kept: read from `before`, written to `after`. The same pointer twice updates in place;
/// two pointers leave `before` intact, so that the step can be rolled back. All null: no error feedback.
struct Residual {
  const float* before = nullptr;
  float* after = nullptr;
  /// A hint: `after` will not be read soon, and lies apart from `before`. It may be written past the caches.
  bool past_cache = false;
  Bf16Residual bf16 = {};  ///< in place of `before` and `after`
  explicit operator bool() const { return after != nullptr || in_bf16(); }
  bool in_bf16() const { return bf16.after != nullptr; }
};

/// The residual of what starts `by` elements further on.
inline Residual advanced(Residual residual, std::size_t by) {
  if (residual.in_bf16()) {
    residual.bf16.before += by;
    residual.bf16.after += by;
    residual.bf16.rounding.first += by;
  } else if (residual) {
    residual.before += by;
    residual.after += by;
  }
  return residual;
}

/// Makes one element, in fp32, as if the step had not happened; 0 where what was before is overwritten already.
inline void undo(const Residual& residual, std::size_t i) {
  if (residual) residual.after[i] = residual.before == residual.after ? 0.0f : residual.before[i];
}

/// A codec on a device: the three verbs every collective is written in. One virtual call moves a whole slice (thousands
/// of elements), so it costs nothing.
///
/// Slices start on a multiple of `block()` elements within their parameter; only a parameter's last may end off it.
/// Buffers may be unaligned.
class Coder {
 public:
  struct Encode {
    const void* data;  ///< [count] elements of `type`
    Residual residual;
    std::size_t count;
    std::byte* wire;               ///< [wire_bytes(count)], every byte is written
    bool past_cache = false;       ///< a hint: `wire` is next read by another core, and may be written past the caches
    const Noise* noise = nullptr;  ///< rounds stochastically; null: to nearest
  };
  struct Combine {
    std::span<const std::byte* const> sources;  ///< one encoded slice per rank; null at the position of our own
    const void* data;                           ///< [count] our own contribution, used where the source is null
    Residual sender;                            ///< error of our own contribution
    Residual owner;                             ///< error of the encoded sum
    std::size_t count;
    float divisor;    ///< number of ranks for the mean, 1 for the sum
    std::byte* wire;  ///< [wire_bytes(count)] the encoded sum; null: the sum goes to `out` unencoded, `owner` is unused
    void* out;        ///< [count] what every rank will decode from `wire`; may be `data`
    bool past_cache = false;  ///< a hint: `wire` is next read by another core, and may be written past the caches
    const Noise* sender_noise = nullptr;  ///< of our own contribution; null: rounded to nearest
    const Noise* owner_noise = nullptr;   ///< of the encoded sum
  };

  struct Decode {
    const std::byte* wire;  ///< [wire_bytes(count)]
    std::size_t count;
    void* out;                ///< [count] elements of `type`
    bool past_cache = false;  ///< a hint: `out` will not be read soon, and may be written past the caches
  };

  /// Elements that were NaN or infinite, or became so for want of range: in our contribution, and in the sum.
  struct NonFinite {
    std::uint64_t contribution = 0;
    std::uint64_t result = 0;
  };

  virtual ~Coder() = default;

  /// The codec with all its settings, equal for equal codecs: "int8:block=256".
  virtual std::string spec() const = 0;
  /// Elements that must stay together.
  virtual std::size_t block() const noexcept = 0;
  /// Exact size of `count` encoded elements.
  virtual std::size_t wire_bytes(std::size_t count) const noexcept = 0;
  /// Whether it carries every finite element of such a buffer exactly, so that no residual can arise.
  virtual bool lossless(ElementType type) const noexcept = 0;
  /// Whether it wants noise, in a Session with or without error feedback.
  virtual bool stochastic(bool error_feedback) const noexcept {
    static_cast<void>(error_feedback);
    return false;
  }

  /// Whether it looks at Residual::bf16. Sessions with residuals in bf16 take no other.
  virtual bool keeps_bf16() const noexcept { return false; }

  /// What residuals are of: "" for the elements themselves, else how those were transformed. Residuals of one basis
  /// mean nothing in another.
  virtual std::string residual_basis() const { return {}; }

  /// data + residual -> wire; residual := what the wire could not carry. Returns the number of non-finite elements.
  virtual std::uint64_t encode(ElementType type, const Encode& job) const = 0;
  /// The sum of all contributions, in rank order in fp32, divided, plus the owner's residual -> wire and out. The sum
  /// lives one block at a time and never reaches memory. The owner's residual counts the rounding to `type` too.
  virtual NonFinite combine(ElementType type, const Combine& job) const = 0;
  /// wire -> out.
  virtual void decode(ElementType type, const Decode& job) const = 0;
};

}  // namespace tightwire
