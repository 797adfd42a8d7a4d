#pragma once
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/products.hpp>

namespace tightwire::low_rank {

/// A product that a residual holds too much, in memory of the host.
class OwedOnHost {
 public:
  explicit OwedOnHost(Shape shape) : shape_(shape) {}
  /// For factors of so many columns; nothing is allocated after that.
  void reserve(std::size_t columns) {
    left_.reserve(columns * shape_.rows);
    right_.reserve(columns * shape_.columns);
  }
  float* residual = nullptr;  ///< that it is owed by
  std::size_t rank = 0;       ///< 0: nothing is

  FactorProduct factors() const { return {rank, left_.data(), right_.data()}; }
  /// Copies the factors.
  void set(const FactorProduct& product) {
    rank = product.rank;
    left_.assign(product.left, product.left + shape_.rows * rank);
    right_.assign(product.right, product.right + shape_.columns * rank);
  }
  void copy(const OwedOnHost& from) { set(from.factors()); }
  void subtract() const {
    subtract_product(host::level(), {.shape = shape_,
                                     .rank = rank,
                                     .left = left_.data(),
                                     .left_stride = shape_.rows,
                                     .right = right_.data(),
                                     .matrix = residual});
  }

 private:
  Shape shape_;
  std::vector<float> left_, right_;
};

/// What the residual of a matrix, A - left * right^T, holds too much: after a step there is only A in it, and the
/// product is subtracted where the residual is next read, which is in the first pass of the next step. That saves a
/// pass that reads and writes the matrix, 8 of 28 bytes per element; bits are those of subtracting at once.
///
/// It goes with the two copies that an ErrorMemory has of a residual: the one that is committed and the one of this
/// step, which may be the same memory. `Owed` is OwedOnHost, or the same in memory of a device.
template <class Owed>
class LazyResidual {
 public:
  LazyResidual(Owed committed, Owed tentative) : products_{std::move(committed), std::move(tentative)} {}

  /// What is to be subtracted from residual.before in the next use.
  FactorProduct owed() const { return products_[used_ ? kTentative : kCommitted].factors(); }

  /// residual.before was read, all that is owed was subtracted, and residual.after is written.
  void paid(const Residual& residual) { use(residual, 0); }
  /// residual.after is now what residual.before was, or is the same memory and was left as it is.
  void copied(const Residual& residual) {
    Owed& to = products_[kTentative];
    if (!used_ || residual.before != residual.after) to.copy(products_[kCommitted]);
    use(residual, to.rank);
  }
  /// A product is to be subtracted from what was written last. Copies the factors.
  void owe(const FactorProduct& product) { products_[kTentative].set(product); }

  void end_step(bool keep) {
    if (used_ && (keep || in_place_)) std::swap(products_[kCommitted], products_[kTentative]);
    used_ = false;
  }
  /// Residuals were replaced by others, of which nothing is owed.
  void forget() {
    for (Owed& product : products_) product.rank = 0;
    used_ = false;
  }

  /// Subtracts from the residual that is committed what it owes. Where the copies are one, that is what this step has
  /// made of it.
  void settle_committed() { settle(products_[used_ && in_place_ ? kTentative : kCommitted]); }
  /// The same for the residual that the next use reads.
  void settle_next() { settle(products_[used_ ? kTentative : kCommitted]); }

 private:
  static constexpr std::size_t kCommitted = 0, kTentative = 1;

  void use(const Residual& residual, std::size_t rank) {
    if (!used_) in_place_ = residual.before == residual.after;
    used_ = true;
    products_[kTentative].residual = residual.after;
    products_[kTentative].rank = rank;
  }
  static void settle(Owed& product) {
    if (product.rank != 0) product.subtract();
    product.rank = 0;
  }

  std::array<Owed, 2> products_;
  bool used_ = false;      ///< in this step
  bool in_place_ = false;  ///< the copies are one
};

}  // namespace tightwire::low_rank
