#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/make_noise.hpp>

namespace tightwire::host {

/// out := x + residuals in bf16. `out` may be `x`.
struct AddResidual {
  struct Job {
    const float* x;
    const std::uint16_t* residual;
    std::size_t count;
    float* out;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    const auto* const residual = reinterpret_cast<const std::byte*>(job.residual);
    std::size_t i = 0;
    for (; i + 4 * W <= job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      Lanes<int, W> h[4];
      prefetch_ahead<4 * W>(job.x + i);
      TIGHTWIRE_UNROLL(2)
      for (int line = 0; line < 8 * W; line += 64) detail::prefetch(residual + 2 * (i + kAhead) + line);
      load<W>(job.x + i, x);
      detail::widen_from_16(residual + 2 * i, h);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) x[k] = x[k] + detail::bf16_value(as_unsigned(h[k]));
      store<W>(x, job.out + i);
    }
    for (; i < job.count; ++i) job.out[i] = job.x[i] + detail::from_bf16(job.residual[i]);
  }
};

/// fp32 -> residuals in bf16, as detail::bf16_residual_bits has it.
struct RoundResidual {
  /// Random bits of a run of elements, and once more the first of them.
  static constexpr std::size_t kRandom = detail::kNoiseGroup + 64;
  struct Job {
    const float* x;
    const int* random;  ///< [kRandom]
    std::size_t place;  ///< of the first element in a group of those
    std::size_t count;
    std::uint16_t* to;
    bool past_cache;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    std::size_t i = 0;
    for (; i + 4 * W <= job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      Lanes<int, W> bits[4];
      load<W>(job.x + i, x);
      const int* const random = job.random + (job.place + i) % detail::kNoiseGroup;
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) {
        clamp_magnitude(x[k], Lanes<float, W>(detail::kLargestResidual));
        bits[k] = as_int(to_bits(x[k])) + Lanes<int, W>::load(random + W * k);
      }
      auto* const to = reinterpret_cast<std::byte*>(job.to + i);
      if (!job.past_cache) {
        detail::upper_halves(bits, to);
      } else {
        alignas(64) std::byte packed[8 * W];
        detail::upper_halves(bits, packed);
        detail::copy_past_cache(packed, to, 8 * W);
      }
    }
    for (; i < job.count; ++i)
      job.to[i] = detail::bf16_residual_bits(job.x[i], job.random[(job.place + i) % detail::kNoiseGroup]);
  }
};

/// Rounds residuals to bf16, tile by tile.
class ResidualRounding {
 public:
  explicit ResidualRounding(Level level) : level_(level) {}

  void keep(const float* difference, std::size_t count, const Residual& to) {
    const bool past_cache = to.past_cache && reinterpret_cast<std::uintptr_t>(to.bf16.after) % 16 == 0;
    for (std::size_t i = 0; i < count;) {
      const Run run = run_at(to.bf16.rounding, i);
      const std::size_t length = std::min(run.left, count - i);
      host::run<RoundResidual>(level_, {difference + i, run.bits.random, run.bits.place, length, to.bf16.after + i,
                                        past_cache && i % 8 == 0});
      i += length;
    }
  }

  /// Elements that are rounded by the same bits, and those.
  struct Run {
    ResidualBits bits;
    std::size_t left;
  };
  /// From element `i` of a residual on.
  Run run_at(const Noise& rounding, std::size_t i) {
    const Noise noise = detail::residual_noise(rounding);
    const std::uint64_t element = noise.first + i, run = element / detail::kResidualRun;
    return {{random_of(noise, run), static_cast<std::size_t>(element % detail::kNoiseGroup)},
            static_cast<std::size_t>((run + 1) * detail::kResidualRun - element)};
  }

 private:
  struct RandomBits {
    bool known = false;
    std::uint64_t number = 0;
    alignas(64) int random[RoundResidual::kRandom];
  };

  /// Two are kept, since a sum is rounded in turn with a contribution to it.
  const int* random_of(const Noise& noise, std::uint64_t number) {
    RandomBits& run = runs_[noise.stream == 0 ? 0 : 1];
    if (!run.known || run.number != number) {
      host::run<MakeNoise<int>>(level_, {&noise, number, 1, run.random});
      std::memcpy(run.random + detail::kNoiseGroup, run.random, 64 * sizeof(int));
      run.known = true;
      run.number = number;
    }
    return run.random;
  }

  Level level_;
  RandomBits runs_[2];
};

}  // namespace tightwire::host
