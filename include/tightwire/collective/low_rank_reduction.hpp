#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/collective/block_reduction.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/low_rank/matrix.hpp>
#include <tightwire/low_rank/plan.hpp>

namespace tightwire {

/// The all-reduce of matrices as products of narrow factors (PowerSgd), with what is sent whole along with them.
///
/// A step, for a matrix A = gradient + residual: one factor is orthonormalized, which all ranks do alike; A times it is
/// the other one, of which the mean over ranks is formed like that of any parameter; then the same the other way round.
/// Every rank holds the product of the two; its residual is A less the product of the first and what it sent itself, so
/// that residuals do not hold what gradients of ranks differ in. The next step goes on from there. With one factor in
/// turn, a step is half of that. Frames of a factor name the one it was multiplied by: a rank that holds another, as
/// where memory or arithmetic err, is found out before it can lead the others astray.
///
/// Factors are on the host, those of equal shapes are orthonormalized together, and matrices are where `Matrix` has
/// them: low_rank::Matrix, or the same on a device.
template <class Matrix>
class BasicLowRankReduction final : public Reduction {
 public:
  /// Of left factors, right factors and whole matrices.
  using Identities = std::array<FrameIdentity, 3>;

  /// Positions in ReductionInput: the matrices, then what goes along. The plan must outlive it.
  BasicLowRankReduction(Transport& transport, const low_rank::Plan& plan, const Identities& identities, float divisor,
                        std::uint64_t seed, const typename Matrix::Place& place = {})
      : plan_(plan), me_(static_cast<std::size_t>(transport.rank())), divisor_(divisor) {
    for (const low_rank::PlannedMatrix& matrix : plan.matrices) matrices_.emplace_back(matrix, seed, place);
    for (const low_rank::Form& form : plan.forms) {
      auto& reductions = reductions_.emplace_back();
      for (std::size_t side = 0; side < 2; ++side) {
        FrameIdentity identity = identities[side];
        identity.fingerprint += reductions_.size() - 1;  // a rank that has chosen another form is found out
        reductions[side] =
            std::make_unique<BlockReduction>(transport, form.factors[side], form.parameters[side], identity, divisor);
      }
    }
    if (plan.error != 0) choice_ = low_rank::RankChoice(plan.error, plan.forms.size());
    if (Matrix::kSentWhole && plan.start_step != 0)
      whole_ = std::make_unique<BlockReduction>(transport, plan.whole, plan.whole_parameters, identities[2], divisor);
    for (const low_rank::Batch& batch : plan.batches) {
      const low_rank::Shape shape = plan.matrices[batch.front()].shape;
      for (const std::size_t rows : {shape.rows, shape.columns}) orthogonalizer_.reserve(batch.size(), rows);
      fixed_factors_.reserve(batch.size());
    }
    std::size_t longest = 0;
    for (const low_rank::Form& form : plan.forms)
      for (std::size_t side = 0; side < 2; ++side) {
        const BucketPlan& of = form.factors[side];
        if (of.algorithm == Algorithm::two_shot) owner_lost_.resize(std::max(owner_lost_.size(), of.owned[me_]));
        for (const PlannedParameter& parameter : form.parameters[side]) longest = std::max(longest, parameter.count);
      }
    nothing_.resize(std::max(longest, owner_lost_.size()));
  }

  void begin(const ReductionInput& input) override {
    input_ = input;
    stage_ = Stage::begun;
    statistics_ = {};
    for (const low_rank::PlannedMatrix& matrix : plan_.matrices)
      statistics_.gradient_bytes += matrix.elements() * element_bytes(matrix.type);
    for (const PlannedParameter& parameter : plan_.along)
      statistics_.gradient_bytes += parameter.count * element_bytes(parameter.type);
  }
  /// Begins the first products now. Else the first `advance` does.
  void start() {
    if (stage_ != Stage::begun) return;
    first_ = true;
    fixed_ = 0;
    Matrix::kSentWhole&& input_.committed < plan_.start_step ? send_whole() : begin_factors();
  }
  /// In place of a use: residuals stay as they are, in a step in which matrices are sent whole.
  void pass(std::span<const Residual> senders) {
    for (std::size_t m = 0; m < matrices_.size(); ++m) matrices_[m].pass(senders[m]);
  }
  bool finished() const override { return stage_ == Stage::finished; }
  const Statistics& statistics() const override { return statistics_; }
  std::size_t frame_bytes() const override {
    std::size_t bytes = whole_ ? whole_->frame_bytes() : 0;
    for (const auto& sides : reductions_)
      for (const auto& reduction : sides) bytes += reduction->frame_bytes();
    return bytes;
  }
  bool wants_wire() const override {
    return (stage_ == Stage::whole || stage_ == Stage::factors) && current_->wants_wire();
  }
  std::size_t factor_rank() const override { return form().rank; }
  std::string waiting_for() const override {
    return stage_ == Stage::multiplying ? "the device" : current_ == nullptr ? "none" : current_->waiting_for();
  }

  bool advance() override {
    if (stage_ == Stage::finished) return false;
    bool progressed = false;
    if (stage_ == Stage::begun) {
      start();
      progressed = true;
    }
    if (stage_ == Stage::multiplying) {
      if (!multiplied()) return progressed;
      send_factors();
      progressed = true;
    }
    progressed = current_->advance() || progressed;
    if (!current_->finished()) return progressed;
    add(current_->statistics());
    if (stage_ == Stage::whole || !next_factor()) stage_ = Stage::finished;
    return true;
  }

  void end_step(bool keep) override {
    for (Matrix& matrix : matrices_) matrix.end_step(keep);
    keep ? committed_side_ = side_ : side_ = committed_side_;
    if (plan_.error != 0) choice_.end_step(keep);
  }
  std::span<Matrix> matrices() { return matrices_; }
  std::span<const Matrix> matrices() const { return matrices_; }
  void settle_residuals() override {
    for (Matrix& matrix : matrices_) matrix.settle();
  }
  void save(state::Records& records) const override {
    for (const Matrix& matrix : matrices_) {
      matrix.save(records);
      records.add(state::Kind::turn, matrix.number(), static_cast<std::uint64_t>(committed_side_),
                  std::span<const float>{});
      if (plan_.error != 0) choice_.save(records, matrix.number());
    }
  }
  void restore(std::span<const state::Record> records, bool /*same_ranks*/) override {
    for (Matrix& matrix : matrices_) {
      matrix.restore(records);
      if (const state::Record* turn = state::find(records, state::Kind::turn, matrix.number()))
        side_ = committed_side_ = turn->detail == 0 ? low_rank::Side::left : low_rank::Side::right;
      const state::Record* choice = state::find(records, state::Kind::rank_choice, matrix.number());
      if (plan_.error != 0 && choice != nullptr) choice_.restore(*choice);
    }
  }

 private:
  enum class Stage { finished, begun, whole, multiplying, factors };

  void send_whole() {
    pass(input_.senders);
    data_.assign(input_.data.begin(), input_.data.end());
    senders_.assign(input_.data.size(), Residual{});
    reduce(*whole_, {});
    stage_ = Stage::whole;
  }
  void begin_factors() {
    {
      const detail::Work work(statistics_.encode_seconds);
      choose_form();
      for (std::size_t m = 0; m < matrices_.size(); ++m)
        matrices_[m].begin(input_.data[m], input_.senders[m], static_cast<std::uint32_t>(input_.committed));
    }
    if (plan_.both_factors) side_ = low_rank::Side::left;
    multiply();
  }
  void multiply() {
    const detail::Work work(statistics_.encode_seconds);
    orthogonalize(low_rank::other(side_));
    for (Matrix& matrix : matrices_) matrix.multiply(side_);
    stage_ = Stage::multiplying;
  }
  /// The factors of a side, those of equal shapes together.
  void orthogonalize(low_rank::Side side) {
    for (const low_rank::Batch& batch : plan_.batches) {
      fixed_factors_.clear();
      for (const std::size_t m : batch) fixed_factors_.push_back(matrices_[m].fixed(low_rank::other(side)));
      orthogonalizer_.orthogonalize(fixed_factors_, length(side, plan_.matrices[batch.front()].shape),
                                    matrices_[batch.front()].rank());
    }
  }
  bool multiplied() const {
    return std::all_of(matrices_.begin(), matrices_.end(), [](const Matrix& matrix) { return matrix.multiplied(); });
  }

  const low_rank::Form& form() const { return plan_.forms[form_]; }

  /// The ranks of this step, which all ranks of the job choose alike.
  void choose_form() {
    form_ = plan_.error != 0 ? choice_.index() : 0;
    while (form_ + 1 < plan_.from_step.size() && input_.committed >= plan_.from_step[form_ + 1]) ++form_;
    for (std::size_t m = 0; m < matrices_.size(); ++m)
      if (const std::size_t rank = plan_.matrices[m].rank(form_); rank != matrices_[m].rank())
        matrices_[m].set_rank(rank);
  }
  void follow_error() {
    low_rank::Energies all;
    for (std::size_t m = 0; m < matrices_.size(); ++m) {
      const std::size_t smaller = form_ == 0 ? 0 : plan_.matrices[m].rank(form_ - 1);
      const low_rank::Energies energies = matrices_[m].energies(smaller);
      all.captured += energies.captured;
      all.last += energies.last;
      all.missed += energies.missed;
    }
    choice_.saw(all);
  }

  void send_factors() {
    const auto side = static_cast<std::size_t>(side_);
    const bool feedback = static_cast<bool>(input_.senders.front());
    fixed_ = 0;
    data_.clear();
    senders_.clear();
    {
      const detail::Work work(statistics_.encode_seconds);
      for (std::size_t m = 0; m < matrices_.size(); ++m) {
        data_.push_back(matrices_[m].product(side_).data());
        fixed_ += matrices_[m].hash_of_fixed(side_);
        const bool loses = feedback && !plan_.matrices[m].settings.factors->lossless(ElementType::f32);
        senders_.push_back(loses ? Residual{nothing_.data(), matrices_[m].lost()} : Residual{});
      }
    }
    if (form().parameters[side].size() > matrices_.size()) {
      data_.insert(data_.end(), input_.data.begin() + static_cast<std::ptrdiff_t>(matrices_.size()), input_.data.end());
      senders_.resize(data_.size());
    }
    const bool owns =
        feedback && form().factors[side].algorithm == Algorithm::two_shot && form().factors[side].owned[me_] != 0;
    reduce(*reductions_[form_][side], owns ? Residual{nothing_.data(), owner_lost_.data()} : Residual{});
    stage_ = Stage::factors;
  }

  void reduce(BlockReduction& reduction, const Residual& owner) {
    ReductionInput inner = input_;
    inner.data = data_;
    inner.senders = senders_;
    inner.owner = owner;
    inner.momenta = {};
    inner.scaled ^= fixed_;
    current_ = &reduction;
    reduction.begin(inner);
  }

  /// After the mean of one factor: the other one, or the end. Returns whether there is more to do.
  bool next_factor() {
    if (plan_.both_factors && first_) {
      first_ = false;
      side_ = low_rank::Side::right;
      multiply();
      return true;
    }
    const detail::Work work(statistics_.decode_seconds);
    if (plan_.error != 0) follow_error();
    account_for_losses();
    for (std::size_t m = 0; m < matrices_.size(); ++m)
      statistics_.nonfinite += matrices_[m].finish(side_, divisor_, plan_.matrices[m].number % ranks() == me_);
    side_ = low_rank::other(side_);
    return false;
  }

  /// What the codec of the factors dropped of ours, and of the sums that we own, was not sent: it stays in the
  /// residual.
  void account_for_losses() {
    for (std::size_t m = 0; m < matrices_.size(); ++m)
      if (senders_[m]) matrices_[m].subtract_lost();
    const BucketPlan& plan = form().factors[static_cast<std::size_t>(side_)];
    if (plan.algorithm != Algorithm::two_shot) return;
    for (const Chunk& chunk : plan.chunks)
      for (const Slice& slice : chunk.shares[me_].slices) {
        if (slice.parameter >= matrices_.size() || !senders_[slice.parameter]) continue;
        for (std::size_t i = 0; i < slice.count; ++i)
          matrices_[slice.parameter].subtract_lost(slice.begin + i,
                                                   detail::rounded_product(divisor_, owner_lost_[slice.error_at + i]));
      }
  }
  std::size_t ranks() const { return static_cast<std::size_t>(form().factors[0].ranks); }

  void add(const Statistics& inner) {
    const std::uint64_t gradient_bytes = statistics_.gradient_bytes;
    statistics_ += inner;
    statistics_.gradient_bytes = gradient_bytes;
  }

  const low_rank::Plan& plan_;
  std::size_t me_;
  float divisor_;
  std::vector<Matrix> matrices_;
  low_rank::Orthogonalizer orthogonalizer_;
  std::vector<low_rank::SeededFactor> fixed_factors_;                       ///< of a batch
  std::vector<std::array<std::unique_ptr<BlockReduction>, 2>> reductions_;  ///< by form and side
  std::unique_ptr<BlockReduction> whole_;
  low_rank::RankChoice choice_;
  std::size_t form_ = 0;
  BlockReduction* current_ = nullptr;
  low_rank::Side side_ = low_rank::Side::left, committed_side_ = low_rank::Side::left;
  bool first_ = true;
  std::uint64_t fixed_ = 0;  ///< names the factors that these were multiplied by; 0: none
  std::vector<void*> data_;
  std::vector<Residual> senders_;
  std::vector<float> owner_lost_;
  std::vector<float> nothing_;  ///< residuals before
  Stage stage_ = Stage::finished;
  ReductionInput input_{};
  Statistics statistics_;
};

using LowRankReduction = BasicLowRankReduction<low_rank::Matrix>;

}  // namespace tightwire
