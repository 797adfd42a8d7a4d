#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tightwire/collective/reduction.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/low_rank/lazy_residual.hpp>
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/low_rank/products.hpp>
#include <tightwire/sparse/selection.hpp>

namespace tightwire::low_rank {

/// The elements of a matrix in memory of the host, gradient and residual, through one step: what is done to as many
/// numbers as the matrix has. See Matrix, which has the factors.
class HostElements {
 public:
  /// Where it is; on hosts there is nothing to say.
  struct Place {};
  static constexpr bool kSentWhole = true;

  /// For factors of `columns` at most.
  HostElements(const PlannedMatrix& plan, std::size_t columns, const Place& /*place*/)
      : plan_(plan), lazy_(owed(plan.shape, columns), owed(plan.shape, columns)) {}

  void begin(void* data, const Residual& residual) {
    data_ = data;
    residual_ = residual;
    added_ = false;
  }
  bool has_residual() const { return static_cast<bool>(residual_); }

  /// The residual stays as it is, in a step in which the matrix is sent whole.
  void pass(const Residual& residual) {
    if (residual.before != residual.after)
      std::memcpy(residual.after, residual.before, plan_.elements() * sizeof(float));
    lazy_.copied(residual);
  }

  /// Begins the factor of a side, of so many columns, from the other one, which stays as it is until the end. Adds
  /// gradient and residual the first time.
  void multiply(Side side, std::size_t columns, const float* fixed, float* product) {
    const bool fuses = !added_ && side == Side::left && residual_ && host::holds_floats(plan_.type, data_);
    if (!added_ && !fuses) add();
    if (side == Side::left)
      add_and_multiply(level_, {.shape = plan_.shape,
                                .rank = columns,
                                .x = fuses ? static_cast<const float*>(data_) : sums_,
                                .residual = fuses ? residual_ : Residual{},
                                .factor = fixed,
                                .product = product,
                                .product_stride = plan_.shape.rows,
                                .owed = fuses ? lazy_.owed() : FactorProduct{}});
    else
      multiply_transposed(level_, {.shape = plan_.shape,
                                   .rank = columns,
                                   .matrix = sums_,
                                   .factor = fixed,
                                   .factor_stride = plan_.shape.rows,
                                   .product = product});
    if (fuses) {
      lazy_.paid(residual_);
      sums_ = residual_.after;
    }
    added_ = true;
  }
  /// Whether the product is there.
  static constexpr bool ended() { return true; }
  /// Once it is: puts it where `multiply` was told to.
  static constexpr void take(Side /*side*/, std::span<float> /*product*/) {}

  /// A product that the residual holds too much is left to the next step.
  void owe(const FactorProduct& product) { lazy_.owe(product); }

  /// As if the step had not happened; where what was before is overwritten, what is finite of the sums is kept.
  void undo() {
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

  /// Writes a product to the gradient. The residual gets `rest_times` what a gradient of 16 bits cannot hold; 0: it
  /// does not. Returns how many elements do not fit into the gradient, as far as is known.
  std::uint64_t write(const FactorProduct& product, float rest_times) {
    const Shape shape = plan_.shape;
    WriteProduct job{.shape = shape,
                     .rank = product.rank,
                     .left = product.left,
                     .left_stride = shape.rows,
                     .right = product.right,
                     .out = nullptr};
    if (host::holds_floats(plan_.type, data_)) {
      job.out = static_cast<float*>(data_);
      write_product(level_, job);
      if (!may_overflow(product)) return 0;
      return static_cast<std::uint64_t>(std::count_if(job.out, job.out + plan_.elements(), is_infinite));
    }
    // A few rows at a time.
    constexpr std::size_t kRows = 8;
    std::uint64_t overflows = 0;
    widened_.resize(std::max(widened_.size(), kRows * shape.columns));
    for (std::size_t row = 0; row < shape.rows; row += kRows) {
      job.shape.rows = std::min(kRows, shape.rows - row);
      job.left = product.left + row;
      job.out = widened_.data();
      write_product(level_, job);
      const std::size_t first = row * shape.columns, count = job.shape.rows * shape.columns;
      std::byte* const to = static_cast<std::byte*>(data_) + first * element_bytes(plan_.type);
      host::narrow(level_, plan_.type, job.out, count, to);
      for (std::size_t i = 0; i < count; ++i) {
        const float rest = job.out[i] - host::rounded(plan_.type, job.out[i]);
        if (!std::isfinite(rest))
          ++overflows;
        else if (rest_times != 0)
          residual_.after[first + i] += tightwire::detail::rounded_product(rest, rest_times);
      }
    }
    return overflows;
  }

  void end_step(bool keep) { lazy_.end_step(keep); }
  /// Subtracts from the residual of the last commit what it holds too much.
  void settle() { lazy_.settle_committed(); }
  /// Residuals were replaced by others.
  void forget() { lazy_.forget(); }

 private:
  static OwedOnHost owed(Shape shape, std::size_t columns) {
    OwedOnHost owed(shape);
    owed.reserve(columns);
    return owed;
  }

  /// In passes of its own: for gradients that are not floats, and where the right factor is the first.
  void add() {
    if (residual_) {
      lazy_.settle_next();
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

  static bool is_infinite(float x) { return !std::isfinite(x); }
  /// Hardly ever.
  bool may_overflow(const FactorProduct& product) const {
    const auto most = [&](const float* factor, std::size_t rows) {
      float largest = 0;
      for (std::size_t i = 0; i < rows * product.rank; ++i) largest = std::max(largest, std::abs(factor[i]));
      return static_cast<double>(largest);
    };
    return static_cast<double>(product.rank) * most(product.left, plan_.shape.rows) *
               most(product.right, plan_.shape.columns) >
           1e38;
  }

  PlannedMatrix plan_;
  host::Level level_ = host::level();
  LazyResidual<OwedOnHost> lazy_;
  sparse::Selection adder_;
  std::vector<float> widened_;
  const float* sums_ = nullptr;
  void* data_ = nullptr;
  Residual residual_;
  bool added_ = false;
};

}  // namespace tightwire::low_rank
