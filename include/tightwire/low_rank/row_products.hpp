#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#include <tightwire/coder.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/lane_sums.hpp>
#include <tightwire/low_rank/strips.hpp>

namespace tightwire::low_rank {

/// left * right^T, by its factors, column after column.
struct FactorProduct {
  std::size_t rank = 0;          ///< 0: there is none
  const float* left = nullptr;   ///< rows x rank
  const float* right = nullptr;  ///< columns x rank
};

/// A := x + (residual.before - owed), which goes to residual.after, and product := A * factor. Without a residual A is
/// x.
struct AddAndMultiply {
  Shape shape;                 ///< of x, and of the residual
  std::size_t rank;            ///< 1 .. kMostRank
  const float* x;              ///< [rows][columns]
  Residual residual;           ///< the same; in place, or before and after apart from each other
  const float* factor;         ///< columns x rank, column after column
  float* product;              ///< rows x rank, column after column
  std::size_t product_stride;  ///< from one column of it to the next: more than rows where x is a tile of whole rows
  FactorProduct owed{};        ///< what the residual holds too much
};

/// The loop of AddAndMultiply.
///
/// An element of the product is a sum over blocks of 1024 columns, from left to right. The sum of a block is made of 16
/// partial sums: number s has columns s, s + 16, s + 32 ... of the block, added from left to right to zero. Then s and
/// s + 8 are added for s < 8, s and s + 4 for s < 4, s and s + 2 for s < 2, and the last two. It is what 16 lanes do;
/// narrower registers keep the 16 in several. Products are added as they are, rounded once with the sum.
struct RowProducts {
  using Job = AddAndMultiply;

  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    alignas(64) float packed[kColumns * kRanks];
    alignas(64) float owed[kColumns * kRanks];
    constexpr int kRows = W == 16 ? 4 : 2;
    for (std::size_t first = 0; first < job.shape.columns; first += kColumns) {
      const std::size_t count = std::min(kColumns, job.shape.columns - first);
      const bool owes = job.residual && job.owed.rank != 0, packs = owes && job.owed.rank <= kRanks;
      if (packs) pack(job.owed.right, {job.shape.columns, first, count, 0, job.owed.rank}, owed);
      for (std::size_t k = 0; k < job.rank; k += kRanks) {
        Block block{job,
                    {job.shape.columns, first, count, k, std::min(kRanks, job.rank - k)},
                    packed,
                    packs ? owed : nullptr,
                    false};
        // Past the caches only what this loop does not itself read again.
        block.past_cache = job.residual.past_cache && job.residual.before != job.residual.after &&
                           job.rank <= kTileRanks<W> && job.shape.columns % 16 == 0 &&
                           host::is_aligned(job.residual.after);
        pack(job.factor, block.part, packed);
        std::size_t row = 0;
        for (; row + kRows <= job.shape.rows; row += kRows) multiply_rows<W, kRows>(block, row);
        for (; row < job.shape.rows; ++row) multiply_rows<W, 1>(block, row);
      }
    }
    tightwire::detail::order_stores_past_cache();
  }

 private:
  static constexpr std::size_t kColumns = 1024;  // of a block: part of the result
  static constexpr std::size_t kRanks = 32;      // for which a packed factor stays in the second cache
  static constexpr int kPartialSums = 16;
  /// Columns of the product that are summed at a time, in as many registers as there are.
  template <int W>
  static constexpr int kTileRanks = W == 16  ? 4
                                    : W == 8 ? 2
                                             : 1;
  template <int W, int Rows, int Ranks>
  struct Sums {
    Lanes<float, W> of[kPartialSums / W][Rows * Ranks];
  };
  /// What a tile of the product is made of: x and the residual, the matrix, or the matrix that a tile beside it has
  /// read.
  enum class Reads { two_and_subtract, two_and_add, one, again };
  struct Block {
    const Job& job;
    FactorPart part;
    const float* packed;
    const float* packed_owed;  ///< null: read where it is
    bool past_cache;
  };
  /// Where some rows of a strip are.
  struct Strip {
    const float* x;
    const float* before;
    float* after;
    std::size_t stride;   ///< from row to row
    const float* factor;  ///< [ranks][kStrip]
    bool past_cache;
    const float* owed_left = nullptr;   ///< [owed ranks][Rows]
    const float* owed_right = nullptr;  ///< of the first of these columns
    std::size_t owed_stride = 0;        ///< from one column of the right factor to the next
    std::size_t owed_step = 0;          ///< from one strip of it to the next
    std::size_t owed_rank = 0;
  };

  template <int W, int Rows>
  TIGHTWIRE_INLINE static void multiply_rows(const Block& block, std::size_t row) {
    for_ranks<kTileRanks<W>>(block.part.rank, [&]<int Ranks>(std::size_t k) TIGHTWIRE_LAMBDA_INLINE {
      // Whoever is first adds; the others find the sum, of which the block is still in the cache.
      if (k != 0)
        multiply_tile<W, Rows, Ranks, Reads::again>(block, row, k);
      else if (block.job.residual && block.part.first_rank == 0 && block.job.owed.rank != 0)
        multiply_tile<W, Rows, Ranks, Reads::two_and_subtract>(block, row, k);
      else if (block.job.residual && block.part.first_rank == 0)
        multiply_tile<W, Rows, Ranks, Reads::two_and_add>(block, row, k);
      else
        multiply_tile<W, Rows, Ranks, Reads::one>(block, row, k);
    });
  }

  template <int W, int Rows, int Ranks, Reads Mode>
  TIGHTWIRE_INLINE static void multiply_tile(const Block& block, std::size_t row, std::size_t k) {
    constexpr bool kSubtract = Mode == Reads::two_and_subtract, kAdd = Mode == Reads::two_and_add || kSubtract;
    const Job& job = block.job;
    const std::size_t stride = job.shape.columns, rank = block.part.rank, at = row * stride + block.part.first;
    Strip strip{job.x + at, nullptr, nullptr, stride, block.packed + k * kStrip, block.past_cache};
    if (job.residual) {
      strip.before = job.residual.before + at;
      strip.after = job.residual.after + at;
      if (!kAdd) strip.x = strip.after;
    }
    [[maybe_unused]] alignas(64) float owed_left[kSubtract ? Rows * kMostRank : 1];
    if constexpr (kSubtract) {
      pack_rows<Rows>(job.owed.left + row, job.shape.rows, Rows, job.owed.rank, owed_left);
      strip.owed_left = owed_left;
      const bool packed = block.packed_owed != nullptr;
      strip.owed_right = packed ? block.packed_owed : job.owed.right + block.part.first;
      strip.owed_stride = packed ? kStrip : stride;
      strip.owed_step = packed ? kStrip * job.owed.rank : kStrip;
      strip.owed_rank = job.owed.rank;
    }
    Sums<W, Rows, Ranks> sums;
    TIGHTWIRE_UNROLL(4)
    for (int r = 0; r < Rows; ++r) TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < Ranks; ++j) TIGHTWIRE_UNROLL(4)
    for (int p = 0; p < kPartialSums / W; ++p) sums.of[p][r * Ranks + j] = Lanes<float, W>(0.0f);

    const std::size_t whole = block.part.count / kStrip * kStrip;
    for (std::size_t c = 0; c < whole; c += kStrip) {
      add_strip<W, Rows, Ranks, kAdd, kSubtract>(strip, sums);
      if constexpr (kSubtract) strip.owed_right += strip.owed_step;
      strip.x += kStrip;
      if constexpr (kAdd) {
        strip.before += kStrip;
        strip.after += kStrip;
      }
      strip.factor += kStrip * rank;
    }
    if (whole < block.part.count) {
      alignas(64) float padded[Rows][kStrip] = {};
      copy_narrow<W, Rows, kAdd, kSubtract>(strip, block.part.count - whole, padded);
      strip.x = padded[0];
      strip.stride = kStrip;
      add_strip<W, Rows, Ranks, false, false>(strip, sums);
    }
    alignas(64) float of_lanes[W];
    sum_parts(sums.of, of_lanes);
    TIGHTWIRE_UNROLL(4)
    for (int j = 0; j < Ranks; ++j) {
      float* const to =
          job.product + (block.part.first_rank + k + static_cast<std::size_t>(j)) * job.product_stride + row;
      TIGHTWIRE_UNROLL(4)
      for (int r = 0; r < Rows; ++r)
        to[r] = block.part.first == 0 ? of_lanes[r * Ranks + j] : to[r] + of_lanes[r * Ranks + j];
    }
  }

  template <int W, int Rows, int Ranks, bool Add, bool Subtract>
  TIGHTWIRE_INLINE static void add_strip(const Strip& strip, Sums<W, Rows, Ranks>& sums) {
    [[maybe_unused]] alignas(64) float less[Subtract ? Rows * kStrip : 1];
    if constexpr (Subtract) multiply_owed<W, Rows>(strip, strip.owed_right, strip.owed_stride, less);
    for (std::size_t i = 0; i < kStrip; i += kPartialSums) {
      TIGHTWIRE_UNROLL(4)
      for (int p = 0; p < kPartialSums / W; ++p) {
        const std::size_t c = i + static_cast<std::size_t>(p * W);
        Lanes<float, W> a[Rows];
        TIGHTWIRE_UNROLL(4)
        for (int r = 0; r < Rows; ++r) {
          const std::size_t at = static_cast<std::size_t>(r) * strip.stride + c;
          // Of the next rows, into the second cache, line by line: many at once would keep these ones waiting.
          if (Add && p == 0) {
            __builtin_prefetch(strip.x + at + Rows * strip.stride, 0, 2);
            __builtin_prefetch(strip.before + at + Rows * strip.stride, 0, 2);
          }
          a[r] = Lanes<float, W>::load(strip.x + at);
          if constexpr (Add) {
            auto before = Lanes<float, W>::load(strip.before + at);
            if constexpr (Subtract)
              before = before - Lanes<float, W>::load(less + static_cast<std::size_t>(r) * kStrip + c);
            a[r] = a[r] + before;
            if (strip.past_cache)
              tightwire::detail::store_past_cache(a[r], strip.after + at);
            else
              a[r].store(strip.after + at);
          }
        }
        TIGHTWIRE_UNROLL(4)
        for (int j = 0; j < Ranks; ++j) {
          const auto q = Lanes<float, W>::load(strip.factor + static_cast<std::size_t>(j) * kStrip + c);
          TIGHTWIRE_UNROLL(4)
          for (int r = 0; r < Rows; ++r) add_fused_product(sums.of[p][r * Ranks + j], a[r], q);
        }
      }
    }
  }

  /// less[r][kStrip] := what is owed of a strip, summed as in OuterProducts.
  template <int W, int Rows>
  TIGHTWIRE_INLINE static void multiply_owed(const Strip& strip, const float* right, std::size_t stride, float* less) {
    constexpr int kRegisters = W == 16 ? 4 : 2;
    for (std::size_t c = 0; c < kStrip; c += kRegisters * W) {
      Lanes<float, W> sum[Rows][kRegisters];
      TIGHTWIRE_UNROLL(4)
      for (int r = 0; r < Rows; ++r) TIGHTWIRE_UNROLL(4)
      for (int i = 0; i < kRegisters; ++i) sum[r][i] = Lanes<float, W>(0.0f);
      for (std::size_t k = 0; k < strip.owed_rank; ++k) {
        Lanes<float, W> q[kRegisters];
        host::load<W>(right + k * stride + c, q);
        TIGHTWIRE_UNROLL(4)
        for (int r = 0; r < Rows; ++r) {
          const Lanes<float, W> p(strip.owed_left[k * Rows + static_cast<std::size_t>(r)]);
          TIGHTWIRE_UNROLL(4)
          for (int i = 0; i < kRegisters; ++i) add_fused_product(sum[r][i], q[i], p);
        }
      }
      TIGHTWIRE_UNROLL(4)
      for (int r = 0; r < Rows; ++r) host::store<W>(sum[r], less + static_cast<std::size_t>(r) * kStrip + c);
    }
  }

  template <int W, int Rows, bool Add, bool Subtract>
  TIGHTWIRE_INLINE static void copy_narrow(const Strip& strip, std::size_t width, float (&padded)[Rows][kStrip]) {
    [[maybe_unused]] alignas(64) float less[Subtract ? Rows * kStrip : 1];
    if constexpr (Subtract) {
      alignas(64) float right[kMostRank * kStrip];
      for (std::size_t k = 0; k < strip.owed_rank; ++k) {
        std::memcpy(right + k * kStrip, strip.owed_right + k * strip.owed_stride, width * sizeof(float));
        std::fill(right + k * kStrip + width, right + (k + 1) * kStrip, 0.0f);
      }
      multiply_owed<W, Rows>(strip, right, kStrip, less);
    }
    for (std::size_t r = 0; r < Rows; ++r)
      for (std::size_t i = 0; i < width; ++i) {
        const std::size_t at = r * strip.stride + i;
        padded[r][i] = strip.x[at];
        if constexpr (Subtract)
          strip.after[at] = padded[r][i] = padded[r][i] + (strip.before[at] - less[r * kStrip + i]);
        else if constexpr (Add)
          strip.after[at] = padded[r][i] = padded[r][i] + strip.before[at];
      }
  }
};

}  // namespace tightwire::low_rank
