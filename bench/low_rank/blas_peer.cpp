#include "blas_peer.hpp"

#include <cblas.h>

#include <vector>

#include "memory.hpp"

namespace bench {
namespace {

class Step final : public BlasStep {
 public:
  Step(tightwire::low_rank::Shape shape, std::size_t rank, const float* gradient)
      : rows_(static_cast<int>(shape.rows)),
        columns_(static_cast<int>(shape.columns)),
        rank_(static_cast<int>(rank)),
        gradient_(gradient),
        a_(4 * shape.rows * shape.columns, 1088),
        out_(4 * shape.rows * shape.columns, 2176),
        p_(shape.rows * rank),
        q_(shape.columns * rank),
        next_q_(shape.columns * rank) {
    tightwire::low_rank::seed_factor(q_.data(), q_.size(), 1, 1, 1, 0);
    for (float& x : q_) x *= 1e-2f;  // about as long as an orthonormal column of a few thousand
    openblas_set_num_threads(1);
  }

  void run() override {
    float* const a = a_.floats();
    cblas_saxpy(rows_ * columns_, 1.0f, gradient_, 1, a, 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows_, rank_, columns_, 1.0f, a, columns_, q_.data(), rank_,
                0.0f, p_.data(), rank_);
    for (float& x : p_) x *= 1e-3f;  // in place of orthonormal columns: values are to stay finite
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, columns_, rank_, rows_, 1.0f, a, columns_, p_.data(), rank_,
                0.0f, next_q_.data(), rank_);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows_, columns_, rank_, 0.5f, p_.data(), rank_, q_.data(),
                rank_, 0.0f, out_.floats(), columns_);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows_, columns_, rank_, -1e-6f, p_.data(), rank_,
                next_q_.data(), rank_, 1.0f, a, columns_);
  }

 private:
  int rows_, columns_, rank_;
  const float* gradient_;
  Memory a_, out_;
  std::vector<float> p_, q_, next_q_;
};

}  // namespace

bool has_blas() { return true; }
std::unique_ptr<BlasStep> make_blas_step(tightwire::low_rank::Shape shape, std::size_t rank, const float* gradient) {
  return std::make_unique<Step>(shape, rank, gradient);
}

}  // namespace bench
