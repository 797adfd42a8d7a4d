#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/detail/bits.hpp>
#include <tightwire/detail/compact.hpp>
#include <tightwire/detail/lanes.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/elements.hpp>

namespace tightwire::host {

/// v := x + before, which goes to `after`; those with |v| >= threshold are appended with their places. One pass: twelve
/// bytes per element, or four where there is no residual. The largest of those found leave a zero in `after`. Returns
/// how many were found in all.
struct FindLarge {
  /// A hint: not one in four hundred elements is as large, or not one in forty, or more. The first skips groups
  /// without any by a branch, which must seldom be mispredicted; the second reads those found back from the caches,
  /// which costs the memory's time least but more for each.
  enum class Density { seldom, some, many };
  struct Job {
    const float* x;
    const float* before;  ///< null: v is x
    float* after;         ///< null: v is kept nowhere; may be `before`
    std::size_t count;
    std::uint32_t place;      ///< of the first element
    std::uint32_t threshold;  ///< bits of a magnitude, at least 1
    std::uint32_t taken;      ///< v is 0 in `after` from this magnitude on, which is not below the threshold
    float* values;            ///< room for `found` + count + 16
    std::uint32_t* places;
    std::size_t found;  ///< before
    bool past_cache;    ///< `after` need not stay in the caches
    Density density;
  };

  template <int W>
  TIGHTWIRE_INLINE static std::size_t run(const Job& job) {
    switch (job.density) {
      case Density::seldom: return find<W, Density::seldom>(job);
      case Density::some: return find<W, Density::some>(job);
      default: return find<W, Density::many>(job);
    }
  }

 private:
  template <int W, Density D>
  TIGHTWIRE_INLINE static std::size_t find(const Job& job) {
    if (job.before == nullptr) return find<W, D, false, false>(job);
    // What went past the caches is not read back.
    constexpr Density kPast = D == Density::some ? Density::many : D;
    return job.past_cache && is_aligned(job.after) ? find<W, kPast, true, true>(job) : find<W, D, true, false>(job);
  }
  /// The processor's own prefetching keeps too few lines under way beside so much else to do: those of the next
  /// kilobytes come near from where those of the next page have been brought before.
  static constexpr std::size_t kNear = 768, kAhead = 4096;
  template <int Count>
  TIGHTWIRE_INLINE static void prefetch(const float* from) {
    constexpr int kLine = 16;
    TIGHTWIRE_UNROLL(4)
    for (int i = 0; i < Count; i += kLine) {
      __builtin_prefetch(from + kNear + i, 0, 3);
      __builtin_prefetch(from + kAhead + i, 0, 2);
    }
  }
  static constexpr std::size_t kBlock = 4096;  ///< elements, which stay in the nearest cache

  /// Adds 4 W elements. What is not read back loses what is taken at once.
  template <int W, bool Add, bool PastCache, bool Take>
  TIGHTWIRE_INLINE static void sum(const Job& job, std::size_t i, Lanes<float, W> (&v)[4]) {
    prefetch<4 * W>(job.x + i);
    load<W>(job.x + i, v);
    if constexpr (Add) {
      prefetch<4 * W>(job.before + i);
      add<W>(job.before + i, v);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) {
        Lanes<float, W> rest = v[k];
        if constexpr (Take) detail::clear_large(rest, job.taken);
        if constexpr (PastCache)
          detail::store_past_cache(rest, job.after + i + k * W);
        else
          rest.store(job.after + i + k * W);
      }
    }
  }

  template <int W, Density D, bool Add, bool PastCache>
  TIGHTWIRE_INLINE static std::size_t find(const Job& given) {
    const Job job = given;  // a copy, or it would be read again after every store
    std::size_t found = job.found, i = 0;
    if constexpr (D == Density::some)
      found = read_back<W, Add>(job, i);
    else
      found = append<W, D, Add, PastCache>(job, i);
    for (; i < job.count; ++i) {
      float v = job.x[i];
      if constexpr (Add) v = v + job.before[i];
      const std::uint32_t magnitude = detail::to_bits(v) & detail::kMagnitudeMask;
      if constexpr (Add) job.after[i] = magnitude >= job.taken ? 0.0f : v;
      job.values[found] = v;
      job.places[found] = job.place + static_cast<std::uint32_t>(i);
      found += magnitude >= job.threshold ? 1 : 0;
    }
    if constexpr (PastCache) detail::order_stores_past_cache();
    return found;
  }

  template <int W, Density D, bool Add, bool PastCache>
  TIGHTWIRE_INLINE static std::size_t append(const Job& job, std::size_t& i) {
    std::size_t found = job.found;
    Lanes<std::uint32_t, W> place;
    for (int lane = 0; lane < W; ++lane) place.v[lane] = job.place + static_cast<std::uint32_t>(lane);
    for (; i + 4 * W <= job.count; i += 4 * W) {
      Lanes<float, W> v[4];
      sum<W, Add, PastCache, true>(job, i, v);
      if constexpr (D == Density::seldom)
        if (!detail::any_large(v, job.threshold)) continue;
      Lanes<std::uint32_t, W> at = place + Lanes<std::uint32_t, W>(static_cast<std::uint32_t>(i));
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) {
        found += detail::append_large(v[k], at, job.threshold, job.values + found, job.places + found);
        at = at + Lanes<std::uint32_t, W>(static_cast<std::uint32_t>(W));
      }
    }
    return found;
  }

  /// To take out what is found, and to compact it, would be more work than to add, in every group. So only its places
  /// are noted, and a block is finished while it is in the nearest cache.
  template <int W, bool Add>
  TIGHTWIRE_INLINE static std::size_t read_back(const Job& job, std::size_t& i) {
    std::size_t found = job.found;
    while (i + 4 * W <= job.count) {
      const std::size_t before = found;
      for (const std::size_t end = i + kBlock; i < end && i + 4 * W <= job.count; i += 4 * W) {
        Lanes<float, W> v[4];
        sum<W, Add, false, false>(job, i, v);
        found += detail::append_set(detail::large_set(v, job.threshold), job.place + static_cast<std::uint32_t>(i),
                                    job.places + found);
      }
      detail::fetch_large(Lanes<float, W>(), {Add ? job.after : job.x, Add ? job.after : nullptr, job.place, job.taken},
                          {job.places + before, found - before}, job.values + before);
    }
    return found;
  }
};

/// Keeps what is at least as large as a threshold, with its place, in front and in order. Returns how many. Room for 16
/// more must be behind the end.
struct KeepLarge {
  struct Job {
    float* values;
    std::uint32_t* places;
    std::size_t count;
    std::uint32_t threshold;
  };
  template <int W>
  TIGHTWIRE_INLINE static std::size_t run(const Job& job) {
    std::size_t kept = 0, i = 0;
    for (; i + W <= job.count; i += W) {
      kept += detail::append_many(Lanes<float, W>::load(job.values + i), Lanes<std::uint32_t, W>::load(job.places + i),
                                  job.threshold, job.values + kept, job.places + kept);
    }
    for (; i < job.count; ++i) {
      const float x = job.values[i];
      job.values[kept] = x;
      job.places[kept] = job.places[i];
      kept += (detail::to_bits(x) & detail::kMagnitudeMask) >= job.threshold ? 1 : 0;
    }
    return kept;
  }
};

/// Finds those of an array whose magnitudes lie from `low` up to, but not at, `high`: their indices, ascending, and how
/// many are above.
struct FindBand {
  struct Job {
    const float* values;
    std::size_t count;
    std::uint32_t low, high;  ///< at least 1, and at most 0x80000000, which is above all
    std::uint32_t* indices;   ///< room for `count` + 16
  };
  template <int W>
  TIGHTWIRE_INLINE static detail::BandCount run(const Job& job) {
    detail::BandCount found;
    std::size_t i = 0;
    Lanes<std::uint32_t, W> at;
    for (int lane = 0; lane < W; ++lane) at.v[lane] = static_cast<std::uint32_t>(lane);
    constexpr std::size_t kSoon = 512;
    for (; i + W <= job.count; i += W) {
      detail::prefetch(job.values + i + kSoon);
      detail::append_band(Lanes<float, W>::load(job.values + i), at, job.low, job.high, job.indices, found);
      at = at + Lanes<std::uint32_t, W>(static_cast<std::uint32_t>(W));
    }
    for (; i < job.count; ++i) {
      const std::uint32_t magnitude = detail::to_bits(job.values[i]) & detail::kMagnitudeMask;
      job.indices[found.inside] = static_cast<std::uint32_t>(i);
      found.above += magnitude >= job.high ? 1 : 0;
      found.inside += magnitude >= job.low && magnitude < job.high ? 1 : 0;
    }
    return found;
  }
};

/// Momentum of one tile, as torch.optim.SGD has it: b := factor * b + g; `step` := b, or g + factor * b by Nesterov.
struct ApplyMomentum {
  struct Job {
    const float* g;
    const float* before;
    float* after;  ///< may be `before`
    float* step;   ///< may be `g`
    std::size_t count;
    float factor;
    bool nesterov;
  };

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    std::size_t i = 0;
    const Lanes<float, W> factor(job.factor);
    for (; i + W <= job.count; i += W) {
      const Lanes<float, W> g = Lanes<float, W>::load(job.g + i);
      Lanes<float, W> product = factor * Lanes<float, W>::load(job.before + i);
      detail::settle(product);
      Lanes<float, W> b = product + g;
      b.store(job.after + i);
      if (job.nesterov) {
        product = factor * b;
        detail::settle(product);
        b = g + product;
      }
      b.store(job.step + i);
    }
    for (; i < job.count; ++i) job.after[i] = one(job.g[i], job.before[i], job.factor, job.nesterov, job.step[i]);
  }

  /// One element; returns its momentum.
  static float one(float g, float before, float factor, bool nesterov, float& step) {
    const float b = detail::rounded_product(factor, before) + g;
    step = nesterov ? g + detail::rounded_product(factor, b) : b;
    return b;
  }
};

}  // namespace tightwire::host
