#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tightwire/coder.hpp>
#include <tightwire/host/accumulate.hpp>
#include <tightwire/host/encode.hpp>
#include <tightwire/host/round.hpp>

namespace tightwire::host {

/// Counts the elements of a sum that a buffer cannot hold, and gives all NaNs the same bits, which otherwise depend on
/// which operand of an addition comes first.
[[gnu::noinline, gnu::cold]] inline std::uint64_t settle_overflows(float* x, std::size_t count, int overflow) {
  std::uint64_t overflows = 0;
  for (float* at = x; at < x + count; ++at) {
    const int magnitude = AbsMax::key(*at);
    if (magnitude >= overflow) ++overflows;
    if (magnitude > static_cast<int>(detail::kInfinityBits)) *at = detail::from_bits(0x7fc00000u);
  }
  return overflows;
}

/// A slice: the sum of all contributions -> wire and out. Three blocks are under way, so that nothing waits for the
/// scale of one: our own contribution to the next but one is gathered, the next is summed, and the sum of this one is
/// quantized.
template <BlockCodec C, ElementType Type>
class Combine {
 public:
  struct Job {
    const Coder::Combine* call;
    std::byte* params;  ///< null: the sum goes out without being encoded
    std::byte* codes;
    std::size_t codes_at;  ///< in every source
    Blocks blocks;
  };

  template <int W>
  TIGHTWIRE_INLINE static Coder::NonFinite run(const Job& job) {
    const std::size_t number = job.blocks.number();
    Combine combine(job);
    const Divisor<W> divisor(job.call->divisor);
    Found<C> next{}, found{};
    for (std::size_t b = 0; b < number + 2; ++b) {
      if (b < number) combine.template gather_own<W>(b);
      if (b - 1 < number) next = combine.template sum<W>(b - 1, divisor);
      if (b >= 2)
        job.params == nullptr ? combine.template put_sum<W>(b - 2) : combine.template put_encoded<W>(b - 2, found);
      found = next;
    }
    if (job.call->sender.past_cache || job.call->owner.past_cache || job.call->past_cache)
      detail::order_stores_past_cache();
    return combine.met_;
  }

 private:
  TIGHTWIRE_INLINE explicit Combine(const Job& job)
      : job_(job),
        call_(*job.call),
        has_own_(std::find(call_.sources.begin(), call_.sources.end(), nullptr) != call_.sources.end()) {}

  TIGHTWIRE_INLINE std::byte* out(std::size_t b) const {
    return static_cast<std::byte*>(call_.out) + job_.blocks.begin(b) * element_bytes(Type);
  }

  /// What is read next when this block has been quantized.
  TIGHTWIRE_INLINE Upcoming upcoming(std::size_t b) const {
    Upcoming soon;
    if (has_own_) {
      soon.data(static_cast<const std::byte*>(call_.data), job_.blocks.begin(b + 3), element_bytes(Type));
      soon.sender(call_.sender.before, job_.blocks.begin(b + 3));
    }
    soon.owner(call_.owner.before, job_.blocks.begin(b + 2));
    return soon;
  }

  template <int W>
  TIGHTWIRE_INLINE void gather_own(std::size_t b) {
    if (!has_own_) return;
    const std::size_t begin = job_.blocks.begin(b);
    const std::size_t count = job_.blocks.elements(b);
    float* x = own_x_.of(b, job_.blocks.size);
    Own<C>& own = own_[b % 2];
    const Residual sender = advanced(call_.sender, begin);
    const Found<C> found = find_scale<C>(
        gather<typename C::Stat, Type, W>(static_cast<const std::byte*>(call_.data) + begin * element_bytes(Type),
                                          sender.before, x, count),
        nullptr);
    const bool past_cache = sender.past_cache && is_aligned(sender.after);
    own = {x, found.scale, !found.finite, sender.after, past_cache};
    if (!found.finite) [[unlikely]]
      met_.contribution += quantize_nonfinite<C>({x, count, sender, nullptr, x, ElementType::f32}, found.scale);
  }

  template <int W>
  TIGHTWIRE_INLINE Found<C> sum(std::size_t b, const Divisor<W>& divisor) {
    const std::size_t begin = job_.blocks.begin(b);
    const Contributions<C> all{call_.sources, b * kParamBytes<C>, job_.codes_at + code_bytes(C::bits, begin),
                               own_[b % 2]};
    const typename C::Stat stat =
        accumulate<C, W>(all, divisor, job_.params != nullptr ? advanced(call_.owner, begin).before : nullptr,
                         sum_x_.of(b, job_.blocks.size), job_.blocks.elements(b));
    return find_scale<C>(stat, job_.params != nullptr ? job_.params + b * kParamBytes<C> : nullptr);
  }

  template <int W>
  TIGHTWIRE_INLINE void put_sum(std::size_t b) {
    float* x = sum_x_.of(b, job_.blocks.size);
    const std::size_t count = job_.blocks.elements(b);
    if (largest_bits<W>(x, count) >= overflow_bits(Type)) [[unlikely]]
      met_.result += settle_overflows(x, count, overflow_bits(Type));
    store_block<Type, W>(x, out(b), count);
  }

  template <int W>
  TIGHTWIRE_INLINE void put_encoded(std::size_t b, const Found<C>& found) {
    const std::size_t begin = job_.blocks.begin(b);
    const std::size_t count = job_.blocks.elements(b);
    const float* x = sum_x_.of(b, job_.blocks.size);
    const Residual owner = advanced(call_.owner, begin);
    std::byte* codes = job_.codes + code_bytes(C::bits, begin);
    if (found.finite) [[likely]] {
      if constexpr (Type == ElementType::f32) {
        return quantize<C, W>(
            x, count, found.scale,
            {codes, owner.after, reinterpret_cast<float*>(out(b)), owner.past_cache, call_.past_cache}, upcoming(b));
      } else {
        alignas(64) float values[kLargestBlock];
        quantize<C, W>(x, align_up(count, 4 * W), found.scale, {nullptr, nullptr, values, false, false});
        if (largest_bits<W>(values, count) < overflow_bits(Type)) [[likely]] {
          quantize<C, W>(x, count, found.scale, {codes, nullptr, nullptr, false, call_.past_cache});
          round_block<Type, W>(x, values, owner.after, count);
          return store_block<Type, W>(values, out(b), count);
        }
      }
    }
    put_nonfinite(b, x, found.scale);
  }

  /// Not all is finite, or in the range of the buffer.
  [[gnu::noinline, gnu::cold]] void put_nonfinite(std::size_t b, const float* x, typename C::Scale scale) {
    const std::size_t begin = job_.blocks.begin(b);
    const std::size_t count = job_.blocks.elements(b);
    alignas(64) float values[kLargestBlock] = {};
    met_.result += quantize_nonfinite<C>(
        {x, count, advanced(call_.owner, begin), job_.codes + code_bytes(C::bits, begin), values, Type}, scale);
    store_block<Type, 4>(values, out(b), count);
  }

  const Job job_;
  const Coder::Combine& call_;
  bool has_own_;
  Own<C> own_[2] = {};
  Coder::NonFinite met_;
  TwoBlocks own_x_;
  TwoBlocks sum_x_;
};

template <BlockCodec C>
Coder::NonFinite combine(const C& codec, Level level, ElementType type, const Coder::Combine& job) {
  if (job.count == 0) return {};
  if (job.wire != nullptr) clear_padding(codec, job.count, job.wire);
  const std::size_t codes_at = layout(codec, job.count).codes_at;
  const auto with = [&]<class Kernel>(Kernel*) {
    return run<Kernel>(level, {&job,
                               job.wire,
                               job.wire != nullptr ? job.wire + codes_at : nullptr,
                               codes_at,
                               {job.count, static_cast<std::size_t>(codec.block)}});
  };
  switch (type) {
    case ElementType::bf16: return with(static_cast<Combine<C, ElementType::bf16>*>(nullptr));
    case ElementType::f16: return with(static_cast<Combine<C, ElementType::f16>*>(nullptr));
    default: return with(static_cast<Combine<C, ElementType::f32>*>(nullptr));
  }
}

}  // namespace tightwire::host
