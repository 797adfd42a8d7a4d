#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/any_codec.hpp>
#include <tightwire/codec/dense.hpp>
#include <tightwire/detail/number_text.hpp>
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

  /// Other ranks later: from so many committed steps on, ascending. Leading columns go on, new ones are seeded.
  struct Change {
    std::uint64_t step;
    std::size_t rank;
  };
  std::vector<Change> changes = {};

  /// The error to aim at, from 0 to 1: the part of the mean gradient, residuals included, that the product lacks, as a
  /// ratio of norms over the matrices of a bucket. Not 0: the rank follows it, equal on all ranks, from `rank` by
  /// doublings up to `most_rank`; both factors in every step. What is missed is estimated from one random column that
  /// is sent along (Hutchinson's estimator, averaged over steps), so no pass over the gradient is added.
  double error = 0;
  std::size_t most_rank = 0;
};

/// What a Session knows of PowerSgd.
struct LowRankSettings {
  /// In order of use, or ascending where the rank follows the error.
  std::vector<std::size_t> ranks;
  std::vector<std::uint64_t> from_step;  ///< by rank, where it follows steps
  std::uint64_t start_step = 0;
  std::shared_ptr<const Coder> factors;
  bool both_factors = true;
  bool without_feedback = false;
  double error = 0;

  bool follows_error() const { return error != 0; }
  std::size_t least_rank() const { return *std::min_element(ranks.begin(), ranks.end()); }

  std::string spec() const {
    std::string text = "powersgd:rank=" + std::to_string(ranks.front());
    if (follows_error()) {
      text += "-" + std::to_string(ranks.back()) + ",error=" + detail::number_text(error);
    } else {
      for (std::size_t i = 1; i < ranks.size(); ++i)
        text += ",rank=" + std::to_string(ranks[i]) + "@" + std::to_string(from_step[i]);
    }
    if (start_step != 0) text += ",start=" + std::to_string(start_step);
    if (!both_factors) text += ",one-factor";
    if (without_feedback) text += ",without-feedback";
    if (!factors->lossless(ElementType::f32)) text += "+" + factors->spec();
    return text;
  }
};

inline Codec::Codec(const PowerSgd& power_sgd) {
  const auto bad = [](const std::string& what) { return Error(Errc::invalid_argument, "powersgd: " + what); };
  LowRankSettings settings{.ranks = {power_sgd.rank},
                           .from_step = {0},
                           .start_step = power_sgd.start_step,
                           .factors = nullptr,
                           .both_factors = power_sgd.both_factors,
                           .without_feedback = power_sgd.without_feedback,
                           .error = power_sgd.error};
  for (const PowerSgd::Change& change : power_sgd.changes) {
    if (change.step <= settings.from_step.back())
      throw bad("rank " + std::to_string(change.rank) + " from step " + std::to_string(change.step) +
                " on, but the one before is from step " + std::to_string(settings.from_step.back()) + " on");
    settings.ranks.push_back(change.rank);
    settings.from_step.push_back(change.step);
  }
  if (!(power_sgd.error >= 0 && power_sgd.error < 1))
    throw bad("error must be from 0 to below 1, got " + detail::number_text(power_sgd.error));
  if ((power_sgd.error != 0) != (power_sgd.most_rank != 0))
    throw bad("the rank follows an error where both a range of ranks and the error are given");
  if (power_sgd.error != 0) {
    if (!power_sgd.changes.empty() || !power_sgd.both_factors)
      throw bad("a rank that follows an error needs both factors, and has no steps to change at");
    if (power_sgd.most_rank < power_sgd.rank)
      throw bad("ranks from " + std::to_string(power_sgd.rank) + " to " + std::to_string(power_sgd.most_rank));
    while (settings.ranks.back() < power_sgd.most_rank)
      settings.ranks.push_back(std::min(2 * std::max<std::size_t>(settings.ranks.back(), 1), power_sgd.most_rank));
  }
  constexpr std::size_t kMostRank = 64;
  const std::size_t most = power_sgd.error != 0 ? kMostRank - 1 : kMostRank;
  for (const std::size_t rank : settings.ranks)
    if (rank < 1 || rank > most)
      throw bad("rank must be from 1 to " + std::to_string(most) + ", got " + std::to_string(rank));
  if (power_sgd.factors.sparse() != nullptr || power_sgd.factors.low_rank() != nullptr)
    throw Error(Errc::invalid_argument, "powersgd: factors need a codec of blocks, not " + power_sgd.factors.spec());
  settings.factors = power_sgd.factors.coder(ElementType::f32);
  low_rank_ = std::make_shared<const LowRankSettings>(std::move(settings));
}

}  // namespace tightwire
