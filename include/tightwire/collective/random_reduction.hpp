#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <tightwire/collective/block_reduction.hpp>
#include <tightwire/detail/rounded_product.hpp>
#include <tightwire/host/nonfinite.hpp>
#include <tightwire/momentum.hpp>
#include <tightwire/sparse/draw.hpp>
#include <tightwire/sparse/plan.hpp>
#include <tightwire/sparse/selection.hpp>

namespace tightwire {

/// Parameters, the elements that are drawn of them (fp32, with the codec of the values), and the plan of those.
struct RandomPlan {
  const std::vector<sparse::PlannedSparse>& parameters;
  const BucketPlan& plan;
  const std::vector<PlannedParameter>& drawn;
};

/// The all-reduce of elements that are drawn at random, the same on all ranks (RandomK): they are gathered side by side
/// and summed as a parameter of their own, so that neither indices nor other elements are sent. What the codec of the
/// values drops goes back to where it came from. Where a mean is not finite, residuals are as before the step: with a
/// codec of blocks one such element takes its neighbours along.
class RandomReduction final : public Reduction {
 public:
  /// What the plan refers to must outlive it.
  RandomReduction(Transport& transport, const RandomPlan& plan, FrameIdentity identity, float divisor,
                  const MomentumCorrection& momentum)
      : parameters_(plan.parameters),
        plan_(plan.plan),
        me_(static_cast<std::size_t>(transport.rank())),
        divisor_(divisor),
        momentum_(momentum),
        inner_(transport, plan.plan, plan.drawn, identity, divisor) {
    const std::vector<PlannedParameter>& drawn = plan.drawn;
    const std::size_t count = parameters_.size();
    indices_.resize(count);
    values_.resize(count);
    lost_.resize(count);
    senders_.resize(count);
    std::size_t longest = 0;
    for (std::size_t p = 0; p < count; ++p) {
      lossless_.push_back(drawn[p].coder->lossless(ElementType::f32));
      indices_[p].resize(drawn[p].count);
      values_[p].resize(drawn[p].count);
      data_.push_back(values_[p].data());
      if (!lossless_[p]) lost_[p].resize(drawn[p].count);
      longest = std::max(longest, drawn[p].count);
    }
    const std::size_t owned = plan_.algorithm == Algorithm::two_shot ? plan_.owned[me_] : 0;
    owner_lost_.resize(owned);
    nothing_.resize(std::max(longest, owned));
  }

  void begin(const ReductionInput& input) override {
    input_ = input;
    stage_ = Stage::begun;
    statistics_ = {};
  }
  bool finished() const override { return stage_ == Stage::finished; }
  const Statistics& statistics() const override { return statistics_; }
  std::string waiting_for() const override { return inner_.waiting_for(); }
  bool wants_wire() const override { return stage_ == Stage::reducing && inner_.wants_wire(); }
  std::size_t frame_bytes() const override { return inner_.frame_bytes(); }
  void hold(bool held) override { inner_.hold(held); }

  bool advance() override {
    if (stage_ == Stage::finished) return false;
    bool progressed = false;
    if (stage_ == Stage::begun) {
      gather();
      stage_ = Stage::reducing;
      progressed = true;
    }
    progressed = inner_.advance() || progressed;
    if (!inner_.finished()) return progressed;
    scatter();
    stage_ = Stage::finished;
    return true;
  }

 private:
  enum class Stage { finished, begun, reducing };

  void gather() {
    forgotten_ = 0;
    {
      const detail::Work work(statistics_.encode_seconds);
      for (std::size_t p = 0; p < parameters_.size(); ++p) gather(p);
    }
    ReductionInput inner = input_;
    inner.nonfinite = forgotten_;  // so that all ranks learn of it
    inner.data = data_;
    inner.senders = senders_;
    // A parameter without elements has no residual, whatever the others have.
    const bool feedback = std::any_of(input_.senders.begin(), input_.senders.end(),
                                      [](const Residual& residual) { return static_cast<bool>(residual); });
    inner.owner = owner_lost_.empty() || !feedback ? Residual{} : Residual{nothing_.data(), owner_lost_.data()};
    inner_.begin(inner);
  }
  void gather(std::size_t p) {
    const sparse::PlannedSparse& parameter = parameters_[p];
    const Residual residual = input_.senders[p];
    sparse::draw(input_.seed, input_.use, parameter.number, parameter.count, indices_[p]);
    if (residual) {
      const sparse::Source source{input_.data[p],  parameter.type,
                                  parameter.count, 0,
                                  residual,        input_.momenta.empty() ? Residual{} : input_.momenta[p]};
      const bool all_finite = !adder_.add({&source, 1}, momentum_);
      for (std::size_t i = 0; i < indices_[p].size(); ++i) {
        float& kept = residual.after[indices_[p][i]];
        values_[p][i] = kept;
        if (std::isfinite(kept)) {
          kept = 0.0f;
        } else {
          undo(source.momentum, indices_[p][i]);
          undo(residual, indices_[p][i]);
        }
        if (masks(p)) source.momentum.after[indices_[p][i]] = 0.0f;
      }
      if (!all_finite) forgotten_ += forget_nonfinite(source);
    } else {
      // The others are lost, so these stand for them.
      const float weight = static_cast<float>(parameter.count) / static_cast<float>(indices_[p].size());
      for (std::size_t i = 0; i < indices_[p].size(); ++i) values_[p][i] = weight * at(p, indices_[p][i]);
    }
    senders_[p] = residual && !lossless_[p] ? Residual{nothing_.data(), lost_[p].data()} : Residual{};
  }
  bool masks(std::size_t p) const {
    return !input_.momenta.empty() && momentum_.masking && indices_[p].size() < parameters_[p].count;
  }
  float at(std::size_t p, std::size_t i) const {
    const ElementType type = parameters_[p].type;
    float x = 0;
    host::widen(host::Level::baseline, type, static_cast<const std::byte*>(input_.data[p]) + i * element_bytes(type), 1,
                &x);
    return x;
  }
  /// What is not finite and was not drawn must not stay. Returns how many elements that were.
  static std::uint64_t forget_nonfinite(const sparse::Source& source) {
    const float* const sums = source.residual.after;
    std::uint64_t met = 0;
    for (std::size_t i = 0; i < source.count; ++i) {
      if (std::isfinite(sums[i])) continue;
      ++met;
      undo(source.residual, i);
      undo(source.momentum, i);
    }
    return met;
  }

  void scatter() {
    statistics_ += inner_.statistics();
    statistics_.gradient_bytes = 0;
    const detail::Work work(statistics_.decode_seconds);
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      const ElementType type = parameters_[p].type;
      const std::size_t bytes = parameters_[p].count * element_bytes(type);
      statistics_.gradient_bytes += bytes;
      if (bytes != 0) std::memset(input_.data[p], 0, bytes);
      for (std::size_t i = 0; i < indices_[p].size(); ++i) {
        auto* to = static_cast<std::byte*>(input_.data[p]) + indices_[p][i] * element_bytes(type);
        host::narrow(host::Level::baseline, type, &values_[p][i], 1, to);
        // The same on all ranks.
        if (std::isfinite(values_[p][i]) && !std::isfinite(host::rounded(type, values_[p][i]))) ++statistics_.nonfinite;
        if (!std::isfinite(values_[p][i]))
          forget(p, indices_[p][i]);
        else if (senders_[p])
          input_.senders[p].after[indices_[p][i]] += lost_[p][i];
      }
    }
    if (plan_.algorithm == Algorithm::two_shot) give_back();
  }
  /// What did not arrive finite. Momentum that was masked stays so.
  void forget(std::size_t p, std::size_t i) const {
    undo(input_.senders[p], i);
    if (!input_.momenta.empty() && !masks(p)) undo(input_.momenta[p], i);
  }
  /// What the sums that we own lost is ours to send again: to the codec of the values, and to the type of the buffer.
  void give_back() {
    for (const Chunk& chunk : plan_.chunks)
      for (const Slice& slice : chunk.shares[me_].slices) {
        const std::size_t p = slice.parameter;
        if (!input_.senders[p]) continue;
        for (std::size_t i = 0; i < slice.count; ++i) {
          const float value = values_[p][slice.begin + i];
          float lost = value - host::rounded(parameters_[p].type, value);
          if (!lossless_[p]) lost += owner_lost_[slice.error_at + i];
          if (std::isfinite(lost))
            input_.senders[p].after[indices_[p][slice.begin + i]] += detail::rounded_product(lost, divisor_);
        }
      }
  }

  const std::vector<sparse::PlannedSparse>& parameters_;
  const BucketPlan& plan_;
  std::size_t me_;
  float divisor_;
  MomentumCorrection momentum_;
  BlockReduction inner_;
  sparse::Selection adder_;
  std::vector<std::vector<std::uint32_t>> indices_;  ///< by parameter
  std::vector<std::vector<float>> values_;           ///< drawn elements, then their means
  std::vector<std::vector<float>> lost_;             ///< by our contributions
  std::vector<float> owner_lost_;
  std::vector<float> nothing_;  ///< residuals before
  std::vector<bool> lossless_;
  std::vector<void*> data_;
  std::vector<Residual> senders_;
  std::uint64_t forgotten_ = 0;
  Stage stage_ = Stage::finished;
  ReductionInput input_{};
  Statistics statistics_;
};

}  // namespace tightwire
