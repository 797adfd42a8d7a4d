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
#include <tightwire/detail/content_hash.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/low_rank/lazy_residual.hpp>
#include <tightwire/low_rank/orthogonalize.hpp>
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/low_rank/products.hpp>
#include <tightwire/low_rank/rank_choice.hpp>
#include <tightwire/sparse/selection.hpp>

namespace tightwire::low_rank {

/// One matrix of a bucket through one step: gradient and residual -> own factor -> mean factor -> gradient and
/// residual. The factors that the next step goes on from are the same on every rank.
class Matrix {
 public:
  Matrix(const PlannedMatrix& plan, std::uint64_t seed) : plan_(plan), seed_(seed) {
    for (std::size_t form = 0; form < plan.settings.ranks.size(); ++form) most_ = std::max(most_, plan.rank(form));
    const std::size_t columns = most_ + (probes() ? 1 : 0);
    for (const Side side : {Side::left, Side::right})
      for (auto* factors : {&factors_, &committed_})
        (*factors)[static_cast<std::size_t>(side)].reserve(columns * length(side, plan.shape));
    set_rank(plan.rank(0));
    end_step(true);
    const std::size_t longer = columns * std::max(plan.shape.rows, plan.shape.columns);
    sent_.reserve(longer);
    lost_.resize(longer);
    lazy_.reserve(most_ * plan.shape.rows, most_ * plan.shape.columns);
  }

  /// From the next product on: leading columns stay, new ones are seeded. Between steps, or before the first product of
  /// one.
  void set_rank(std::size_t rank) {
    for (const Side side : {Side::left, Side::right}) {
      const std::size_t rows = length(side, plan_.shape);
      factor(side).resize(rank * rows);
      if (rank > rank_) seed_factor(factor(side).data() + rank_ * rows, rows, rank - rank_, seed_, plan_.number, rank_);
    }
    rank_ = rank;
  }
  std::size_t rank() const { return rank_; }

  /// A gradient and its residual, which are added to each other by the first product: with what the step before left to
  /// be subtracted, 12 bytes per element. The other product reads the sum, 4, and `finish` writes the result, 4.
  void begin(void* data, const Residual& residual, std::uint32_t use) {
    data_ = data;
    residual_ = residual;
    use_ = use;
    added_ = false;
  }

  /// The residual stays as it is, in a step in which the matrix is sent whole.
  void pass(const Residual& residual) {
    if (!residual) return;
    if (residual.before != residual.after)
      std::memcpy(residual.after, residual.before, plan_.elements() * sizeof(float));
    lazy_.copied(residual);
  }
  /// Subtracts from the residual of the last commit what it holds too much.
  void settle() { lazy_.settle_committed(level_, plan_.shape); }

  /// This rank's factor of a side, from the orthonormalized other one; it is to be reduced where it is returned.
  std::span<float> multiply(Side side) {
    std::vector<float>& fixed = factor(other(side));
    orthogonalizer_.orthogonalize(fixed.data(), length(other(side), plan_.shape), rank_,
                                  {seed_, plan_.number, 2 * use_ + static_cast<std::uint32_t>(side)});
    const std::size_t columns = probe(side);
    std::vector<float>& mine = factor(side);
    mine.resize(columns * length(side, plan_.shape));
    const bool fuses = !added_ && side == Side::left && residual_ && host::holds_floats(plan_.type, data_);
    if (!added_ && !fuses) add();
    if (side == Side::left)
      add_and_multiply(level_, {.shape = plan_.shape,
                                .rank = columns,
                                .x = fuses ? static_cast<const float*>(data_) : sums_,
                                .residual = fuses ? residual_ : Residual{},
                                .factor = fixed.data(),
                                .product = mine.data(),
                                .product_stride = plan_.shape.rows,
                                .owed = fuses ? lazy_.owed() : FactorProduct{}});
    else
      multiply_transposed(level_, {.shape = plan_.shape,
                                   .rank = columns,
                                   .matrix = sums_,
                                   .factor = fixed.data(),
                                   .factor_stride = plan_.shape.rows,
                                   .product = mine.data()});
    if (fuses) {
      lazy_.paid(residual_);
      sums_ = residual_.after;
    }
    added_ = true;
    finite_ = all_finite(mine);  // no element of a matrix is left out of its products
    sent_.assign(mine.begin(), mine.end());
    return mine;
  }

  /// Names the factor that was multiplied by for a side, to the bit, with the place of the matrix in its bucket.
  std::uint64_t hash_of_fixed(Side side) {
    return tightwire::detail::content_hash(std::as_bytes(std::span<const float>(factor(other(side))))) *
           (2 * std::uint64_t{plan_.number} + 1);
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
  /// the other one lacks is the residual, which is left to the next step. Where a gradient of 16 bits cannot hold the
  /// product, one rank `keeps_rounding`, the rest times the divisor, for all. Returns how many elements are too large
  /// for the gradient's type, the same on all ranks.
  std::uint64_t finish(Side side, float divisor, bool keeps_rounding) {
    const bool arrived = all_finite(factor(side));
    if (residual_ && !(arrived && finite_))
      undo_all();
    else if (residual_)
      lazy_.owe(plan_.shape, {.rank = rank_,
                              .left = side == Side::left ? sent_.data() : factor(Side::left).data(),
                              .right = side == Side::right ? sent_.data() : factor(Side::right).data()});
    if (arrived) return write(divisor, keeps_rounding);
    write_nan();
    return 0;  // counted where the factors were summed
  }

  void end_step(bool keep) {
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<float>& to = keep ? committed_[side] : factors_[side];
      const std::vector<float>& from = keep ? factors_[side] : committed_[side];
      to.assign(from.begin(), from.end());
    }
    keep ? committed_rank_ = rank_ : rank_ = committed_rank_;
    lazy_.end_step(keep);
  }

  /// Of the mean that was formed last, where its error is followed; `smaller` is the next smaller rank.
  Energies energies(std::size_t smaller) {
    Energies energies{.captured = 0, .last = 0, .missed = missed_};
    const std::size_t rows = plan_.shape.columns;
    for (std::size_t k = 0; k < rank_; ++k) {
      const double square = orthogonalizer_.square(factor(Side::right).data() + k * rows, rows);
      energies.captured += square;
      if (k >= smaller) energies.last += square;
    }
    return energies;
  }

  std::uint32_t number() const { return plan_.number; }
  void save(state::Records& records) const {
    for (const Side side : {Side::left, Side::right})
      records.add(kind(side), plan_.number, committed_rank_,
                  std::span<const float>(committed_[static_cast<std::size_t>(side)]));
  }
  /// Takes up factors. Of another rank, which the next step sets: the leading columns.
  void restore(std::span<const state::Record> records) {
    lazy_.forget();
    const state::Record* of[2] = {state::find(records, kind(Side::left), plan_.number),
                                  state::find(records, kind(Side::right), plan_.number)};
    for (const Side side : {Side::left, Side::right}) {
      const state::Record* record = of[static_cast<std::size_t>(side)];
      if (record == nullptr || record->detail == 0 || record->detail > kMostRank ||
          record->elements() != record->detail * length(side, plan_.shape) || record->detail != of[0]->detail)
        return;
    }
    set_rank(std::min<std::size_t>(of[0]->detail, most_));
    for (const Side side : {Side::left, Side::right})
      std::memcpy(factor(side).data(), of[static_cast<std::size_t>(side)]->bytes.data(),
                  factor(side).size() * sizeof(float));
    end_step(true);
  }

 private:
  static constexpr state::Kind kind(Side side) {
    return side == Side::left ? state::Kind::left_factor : state::Kind::right_factor;
  }
  std::vector<float>& factor(Side side) { return factors_[static_cast<std::size_t>(side)]; }
  bool probes() const { return plan_.settings.follows_error(); }

  /// Where the error is followed: sends the product with a random column along with the left factor, and takes from the
  /// mean of that what the left factor does not span. Returns the columns of the next product.
  std::size_t probe(Side side) {
    if (!probes()) return rank_;
    std::vector<float>& fixed = factor(other(side));
    const std::size_t rows = length(other(side), plan_.shape);
    if (side == Side::right) {
      missed_ = orthogonalizer_.square_outside(fixed.data(), rows, rank_, fixed.data() + rank_ * rows);
      fixed.resize(rank_ * rows);
      return rank_;
    }
    fixed.resize((rank_ + 1) * rows);
    fill_column(fixed.data() + rank_ * rows, rows, {seed_, plan_.number, kProbe, use_});
    return rank_ + 1;
  }
  static constexpr std::uint32_t kProbe = 0xffffffffu;  ///< in place of a column's number

  static bool all_finite(std::span<const float> x) {
    return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
  }

  /// In passes of its own: for gradients that are not floats, and where the right factor is the first.
  void add() {
    if (residual_) {
      lazy_.settle_next(level_, plan_.shape);
      const sparse::Source source{data_, plan_.type, plan_.elements(), 0, residual_, {}};
      adder_.add({&source, 1}, {});
      lazy_.paid(residual_);
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
  void undo_all() {
    if (residual_.before != residual_.after) {
      std::memcpy(residual_.after, residual_.before, plan_.elements() * sizeof(float));
      lazy_.copied(residual_);
      return;
    }
    for (std::size_t i = 0; i < plan_.elements(); ++i)
      if (!std::isfinite(residual_.after[i])) residual_.after[i] = 0.0f;
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
          residual_.after[first + i] += tightwire::detail::rounded_product(rest, divisor);
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
  std::size_t rank_ = 0, committed_rank_ = 0, most_ = 0;
  double missed_ = 0;
  host::Level level_ = host::level();
  Orthogonalizer orthogonalizer_;
  LazyResidual lazy_;
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
