#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/low_rank/orthogonalize.hpp>
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/low_rank/products.hpp>
#include <tightwire/sparse/selection.hpp>

namespace tightwire::low_rank {

/// One matrix of a bucket through one step: gradient and residual -> own factor -> mean factor -> gradient and
/// residual. The factors that the next step goes on from are the same on every rank.
class Matrix {
 public:
  Matrix(const PlannedMatrix& plan, std::uint64_t seed) : plan_(plan), seed_(seed), rank_(plan.rank()) {
    for (const Side side : {Side::left, Side::right}) factor(side).resize(rank_ * length(side, plan.shape));
    seed_factor(factor(Side::right).data(), plan.shape.columns, rank_, seed, plan.number, 0);
    committed_ = factors_;
    const std::size_t longer = rank_ * std::max(plan.shape.rows, plan.shape.columns);
    sent_.reserve(longer);
    lost_.resize(longer);
  }

  /// A gradient and its residual, which are added to each other by the first product.
  void begin(void* data, const Residual& residual, std::uint32_t use) {
    data_ = data;
    residual_ = residual;
    use_ = use;
    added_ = false;
  }

  /// The residual stays as it is, in a step in which the matrix is sent whole.
  void pass(const Residual& residual) const {
    if (residual && residual.before != residual.after)
      std::memcpy(residual.after, residual.before, plan_.elements() * sizeof(float));
  }

  /// This rank's factor of a side, from the orthonormalized other one; it is to be reduced where it is returned.
  std::span<float> multiply(Side side) {
    std::vector<float>& fixed = factor(other(side));
    orthogonalizer_.orthogonalize(fixed.data(), length(other(side), plan_.shape), rank_,
                                  {seed_, plan_.number, 2 * use_ + static_cast<std::uint32_t>(side)});
    std::vector<float>& mine = factor(side);
    const bool fuses = !added_ && side == Side::left && residual_ && host::holds_floats(plan_.type, data_);
    if (!added_ && !fuses) add();
    added_ = true;
    if (side == Side::left)
      add_and_multiply(level_, {.shape = plan_.shape,
                                .rank = rank_,
                                .x = fuses ? static_cast<const float*>(data_) : sums_,
                                .residual = fuses ? residual_ : Residual{},
                                .factor = fixed.data(),
                                .product = mine.data(),
                                .product_stride = plan_.shape.rows});
    else
      multiply_transposed(level_, {.shape = plan_.shape,
                                   .rank = rank_,
                                   .matrix = sums_,
                                   .factor = fixed.data(),
                                   .factor_stride = plan_.shape.rows,
                                   .product = mine.data()});
    if (fuses) sums_ = residual_.after;
    finite_ = all_finite(mine);  // no element of a matrix is left out of its products
    sent_.assign(mine.begin(), mine.end());
    return mine;
  }

  /// Where what the codec of the factors drops of ours is to be kept.
  float* lost() { return lost_.data(); }
  /// Takes what was lost off what counts as sent: all of ours, and one element of a sum that we own.
  void subtract_lost() {
    for (std::size_t i = 0; i < sent_.size(); ++i)
      if (std::isfinite(lost_[i])) sent_[i] -= lost_[i];
  }
  void subtract_lost(std::size_t at, float lost) {
    if (std::isfinite(lost)) sent_[at] -= lost;
  }

  /// Writes the product of the mean factor of `side` and the other one to the gradient; what the product of ours and
  /// the other one lacks is the residual. Where a gradient of 16 bits cannot hold the product, one rank
  /// `keeps_rounding`, the rest times the divisor, for all. Returns how many elements are too large for the gradient's
  /// type, the same on all ranks.
  std::uint64_t finish(Side side, float divisor, bool keeps_rounding) {
    const bool arrived = all_finite(factor(side));
    if (residual_) {
      if (arrived && finite_)
        subtract_product(level_, {.shape = plan_.shape,
                                  .rank = rank_,
                                  .left = side == Side::left ? sent_.data() : factor(Side::left).data(),
                                  .left_stride = plan_.shape.rows,
                                  .right = side == Side::right ? sent_.data() : factor(Side::right).data(),
                                  .matrix = residual_.after});
      else
        undo_all();
    }
    if (arrived) return write(divisor, keeps_rounding);
    write_nan();
    return 0;  // counted where the factors were summed
  }

  void end_step(bool keep) {
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<float>& to = keep ? committed_[side] : factors_[side];
      const std::vector<float>& from = keep ? factors_[side] : committed_[side];
      std::copy(from.begin(), from.end(), to.begin());
    }
  }

  std::uint32_t number() const { return plan_.number; }
  void save(state::Records& records) const {
    for (const Side side : {Side::left, Side::right})
      records.add(kind(side), plan_.number, rank_, std::span<const float>(committed_[static_cast<std::size_t>(side)]));
  }
  /// Takes up factors. Of another rank: the leading columns, and seeded ones where it was smaller.
  void restore(std::span<const state::Record> records) {
    for (const Side side : {Side::left, Side::right}) {
      const state::Record* record = state::find(records, kind(side), plan_.number);
      const std::size_t rows = length(side, plan_.shape);
      if (record == nullptr || record->floats() != record->detail * rows) continue;
      const std::size_t kept = std::min<std::size_t>(record->detail, rank_);
      std::vector<float>& to = factor(side);
      std::memcpy(to.data(), record->bytes.data(), kept * rows * sizeof(float));
      if (kept < rank_) seed_factor(to.data() + kept * rows, rows, rank_ - kept, seed_, plan_.number, kept);
    }
    committed_ = factors_;
  }

 private:
  static constexpr state::Kind kind(Side side) {
    return side == Side::left ? state::Kind::left_factor : state::Kind::right_factor;
  }
  std::vector<float>& factor(Side side) { return factors_[static_cast<std::size_t>(side)]; }

  static bool all_finite(std::span<const float> x) {
    return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
  }

  void add() {
    if (residual_) {
      const sparse::Source source{data_, plan_.type, plan_.elements(), 0, residual_, {}};
      adder_.add({&source, 1}, {});
      sums_ = residual_.after;
    } else if (host::holds_floats(plan_.type, data_)) {
      sums_ = static_cast<const float*>(data_);
    } else {
      widened_.resize(plan_.elements());
      host::widen(level_, plan_.type, static_cast<const std::byte*>(data_), plan_.elements(), widened_.data());
      sums_ = widened_.data();
    }
  }

  /// As if the step had not happened; where what was before is overwritten, what is finite of the sums is kept.
  void undo_all() const {
    for (std::size_t i = 0; i < plan_.elements(); ++i)
      if (residual_.before != residual_.after)
        residual_.after[i] = residual_.before[i];
      else if (!std::isfinite(residual_.after[i]))
        residual_.after[i] = 0.0f;
  }

  /// A factor that is not finite makes the whole matrix NaN, of one pattern of bits.
  void write_nan() {
    widened_.assign(plan_.shape.columns, tightwire::detail::from_bits(0x7fc00000u));
    const std::size_t bytes = plan_.shape.columns * element_bytes(plan_.type);
    for (std::size_t row = 0; row < plan_.shape.rows; ++row)
      host::narrow(level_, plan_.type, widened_.data(), plan_.shape.columns,
                   static_cast<std::byte*>(data_) + row * bytes);
  }

  /// Returns how many elements do not fit into the gradient.
  std::uint64_t write(float divisor, bool keeps_rounding) {
    const Shape shape = plan_.shape;
    WriteProduct job{.shape = shape,
                     .rank = rank_,
                     .left = factor(Side::left).data(),
                     .left_stride = shape.rows,
                     .right = factor(Side::right).data(),
                     .out = nullptr};
    if (host::holds_floats(plan_.type, data_)) {
      job.out = static_cast<float*>(data_);
      write_product(level_, job);
      if (!may_overflow()) return 0;
      return static_cast<std::uint64_t>(std::count_if(job.out, job.out + plan_.elements(), is_infinite));
    }
    // A few rows at a time.
    constexpr std::size_t kRows = 8;
    std::uint64_t overflows = 0;
    widened_.resize(std::max(widened_.size(), kRows * shape.columns));
    for (std::size_t row = 0; row < shape.rows; row += kRows) {
      job.shape.rows = std::min(kRows, shape.rows - row);
      job.left = factor(Side::left).data() + row;
      job.out = widened_.data();
      write_product(level_, job);
      const std::size_t first = row * shape.columns, count = job.shape.rows * shape.columns;
      std::byte* const to = static_cast<std::byte*>(data_) + first * element_bytes(plan_.type);
      host::narrow(level_, plan_.type, job.out, count, to);
      for (std::size_t i = 0; i < count; ++i) {
        const float rest = job.out[i] - host::rounded(plan_.type, job.out[i]);
        if (!std::isfinite(rest))
          ++overflows;
        else if (keeps_rounding && residual_)
          residual_.after[first + i] += rest * divisor;
      }
    }
    return overflows;
  }
  static bool is_infinite(float x) { return !std::isfinite(x); }
  /// Hardly ever.
  bool may_overflow() const {
    double bound = static_cast<double>(rank_);
    for (const std::vector<float>& factor : factors_) {
      float most = 0;
      for (const float x : factor) most = std::max(most, std::abs(x));
      bound *= static_cast<double>(most);
    }
    return bound > 1e38;
  }

  PlannedMatrix plan_;
  std::uint64_t seed_;
  std::size_t rank_;
  host::Level level_ = host::level();
  Orthogonalizer orthogonalizer_;
  sparse::Selection adder_;
  std::array<std::vector<float>, 2> factors_, committed_;  ///< by side
  std::vector<float> sent_;                                ///< our factor, as it went into the mean
  std::vector<float> lost_;
  std::vector<float> widened_;
  const float* sums_ = nullptr;
  void* data_ = nullptr;
  Residual residual_;
  std::uint32_t use_ = 0;
  bool added_ = false;
  bool finite_ = true;
};

}  // namespace tightwire::low_rank
