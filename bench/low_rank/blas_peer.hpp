#pragma once
#include <cstddef>
#include <memory>

#include <tightwire/low_rank/factor.hpp>

namespace bench {

/// A step of PowerSGD on one matrix by a BLAS, but for orthogonalizing: A += gradient; P = A Q; Q' = A^T P;
/// out = P Q^T; A -= P Q'^T. Factors lie row after row, which is how a BLAS is fastest here.
class BlasStep {
 public:
  BlasStep() = default;
  BlasStep(const BlasStep&) = delete;
  BlasStep& operator=(const BlasStep&) = delete;
  virtual ~BlasStep() = default;
  virtual void run() = 0;
};

/// Whether this was built with one.
bool has_blas();
/// Null without.
std::unique_ptr<BlasStep> make_blas_step(tightwire::low_rank::Shape shape, std::size_t rank, const float* gradient);

}  // namespace bench
