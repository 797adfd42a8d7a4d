#pragma once
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/host/dispatch.hpp>
#include <tightwire/low_rank/factor.hpp>
#include <tightwire/low_rank/products.hpp>

namespace tightwire::low_rank {

/// What the residual of a matrix, A - left * right^T, holds too much: after a step there is only A in it, and the
/// product is subtracted where the residual is next read, which is in the first pass of the next step. That saves a
/// pass that reads and writes the matrix, 8 of 28 bytes per element; bits are those of subtracting at once.
///
/// It goes with the two copies that an ErrorMemory has of a residual: the one that is committed and the one of this
/// step, which may be the same memory.
class LazyResidual {
 public:
  /// For factors of so many numbers; nothing is allocated after that.
  void reserve(std::size_t left, std::size_t right) {
    for (Product& product : products_) {
      product.left.reserve(left);
      product.right.reserve(right);
    }
  }

  /// What is to be subtracted from residual.before in the next use.
  FactorProduct owed() const { return products_[used_ ? kTentative : kCommitted].factors(); }

  /// residual.before was read, all that is owed was subtracted, and residual.after is written.
  void paid(const Residual& residual) { use(residual, 0); }
  /// residual.after is now what residual.before was, or is the same memory and was left as it is.
  void copied(const Residual& residual) {
    Product& to = products_[kTentative];
    if (!used_ || residual.before != residual.after) {
      const Product& from = products_[kCommitted];
      to.left.assign(from.left.begin(), from.left.end());
      to.right.assign(from.right.begin(), from.right.end());
      to.rank = from.rank;
    }
    use(residual, to.rank);
  }
  /// A product is to be subtracted from what was written last. Copies the factors.
  void owe(Shape shape, const FactorProduct& product) {
    Product& to = products_[kTentative];
    to.rank = product.rank;
    to.left.assign(product.left, product.left + shape.rows * product.rank);
    to.right.assign(product.right, product.right + shape.columns * product.rank);
  }

  void end_step(bool keep) {
    if (used_ && (keep || in_place_)) std::swap(products_[kCommitted], products_[kTentative]);
    used_ = false;
  }
  /// Residuals were replaced by others, of which nothing is owed.
  void forget() {
    for (Product& product : products_) product.rank = 0;
    used_ = false;
  }

  /// Subtracts from the residual that is committed what it owes. Where the copies are one, that is what this step has
  /// made of it.
  void settle_committed(host::Level level, Shape shape) {
    settle(level, shape, products_[used_ && in_place_ ? kTentative : kCommitted]);
  }
  /// The same for the residual that the next use reads.
  void settle_next(host::Level level, Shape shape) { settle(level, shape, products_[used_ ? kTentative : kCommitted]); }

 private:
  static constexpr std::size_t kCommitted = 0, kTentative = 1;
  struct Product {
    float* residual = nullptr;
    std::size_t rank = 0;
    std::vector<float> left, right;
    FactorProduct factors() const { return {rank, left.data(), right.data()}; }
  };

  void use(const Residual& residual, std::size_t rank) {
    if (!used_) in_place_ = residual.before == residual.after;
    used_ = true;
    products_[kTentative].residual = residual.after;
    products_[kTentative].rank = rank;
  }
  static void settle(host::Level level, Shape shape, Product& product) {
    if (product.rank != 0)
      subtract_product(level, {.shape = shape,
                               .rank = product.rank,
                               .left = product.left.data(),
                               .left_stride = shape.rows,
                               .right = product.right.data(),
                               .matrix = product.residual});
    product.rank = 0;
  }

  std::array<Product, 2> products_;
  bool used_ = false;      ///< in this step
  bool in_place_ = false;  ///< the copies are one
};

}  // namespace tightwire::low_rank
