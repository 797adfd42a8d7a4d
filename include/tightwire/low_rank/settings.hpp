#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tightwire/any_codec.hpp>
#include <tightwire/codec/dense.hpp>
#include <tightwire/error.hpp>

namespace tightwire {

/// Sends matrices as products of two narrow factors (Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient
/// compression for distributed optimization", NeurIPS 2019): one step of power iteration per training step, which goes
/// on where the last one ended. A parameter of two or more dimensions is taken as a matrix of its first dimension by
/// all others; parameters of which two factors are not less than half are sent whole, in the same messages.
struct PowerSgd {
  std::size_t rank = 4;          ///< columns of a factor, 1 to 64; fewer where the matrix is smaller
  std::uint64_t start_step = 0;  ///< committed steps before which everything is sent whole
  Codec factors = Dense{};       ///< how factors are sent: fp32, or any codec; rounded to nearest, with feedback
  /// Both factors in every step, by two reductions. Off: one factor in turn, by one reduction, which sends half as much
  /// and follows gradients less closely ("PowerGossip", Vogels et al., arXiv:2008.01425, alternates so): in training it
  /// was a point less accurate at rank 4 (docs/low-rank.md).
  bool both_factors = true;
  /// Allows SessionOptions::error_feedback = false, with which what a product cannot hold is lost, and training fails.
  bool without_feedback = false;
};

/// What a Session knows of PowerSgd.
struct LowRankSettings {
  std::size_t rank = 4;
  std::uint64_t start_step = 0;
  std::shared_ptr<const Coder> factors;
  bool both_factors = true;
  bool without_feedback = false;

  std::string spec() const {
    std::string text = "powersgd:rank=" + std::to_string(rank);
    if (start_step != 0) text += ",start=" + std::to_string(start_step);
    if (!both_factors) text += ",one-factor";
    if (without_feedback) text += ",without-feedback";
    if (!factors->lossless(ElementType::f32)) text += "+" + factors->spec();
    return text;
  }
};

inline Codec::Codec(const PowerSgd& power_sgd) {
  constexpr std::size_t kMostRank = 64;
  if (power_sgd.rank < 1 || power_sgd.rank > kMostRank)
    throw Error(Errc::invalid_argument, "powersgd: rank must be from 1 to 64, got " + std::to_string(power_sgd.rank));
  if (power_sgd.factors.sparse() != nullptr || power_sgd.factors.low_rank() != nullptr)
    throw Error(Errc::invalid_argument, "powersgd: factors need a codec of blocks, not " + power_sgd.factors.spec());
  low_rank_ = std::make_shared<const LowRankSettings>(
      LowRankSettings{power_sgd.rank, power_sgd.start_step, power_sgd.factors.coder(ElementType::f32),
                      power_sgd.both_factors, power_sgd.without_feedback});
}

}  // namespace tightwire
