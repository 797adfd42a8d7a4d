#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tightwire/detail/content_hash.hpp>
#include <tightwire/low_rank/host_elements.hpp>
#include <tightwire/low_rank/orthogonalize.hpp>
#include <tightwire/low_rank/plan.hpp>
#include <tightwire/low_rank/rank_choice.hpp>

namespace tightwire::low_rank {

/// One matrix of a bucket through one step: gradient and residual -> own factor -> mean factor -> gradient and
/// residual. The factors that the next step goes on from are the same on every rank, and in memory of the host; what
/// has as many elements as the matrix is where `Elements` has it: HostElements, or the same on a device.
template <class Elements>
class BasicMatrix {
 public:
  using Place = typename Elements::Place;
  /// Whether LowRankReduction can send it whole; else others do, before the first step with factors.
  static constexpr bool kSentWhole = Elements::kSentWhole;

  BasicMatrix(const PlannedMatrix& plan, std::uint64_t seed, const Place& place = {})
      : plan_(plan), seed_(seed), most_(most_rank(plan)), elements_(plan, most_ + (probes() ? 1 : 0), place) {
    const std::size_t columns = most_ + (probes() ? 1 : 0);
    for (const Side side : {Side::left, Side::right})
      for (auto* factors : {&factors_, &committed_})
        (*factors)[static_cast<std::size_t>(side)].reserve(columns * length(side, plan.shape));
    set_rank(plan.rank(0));
    end_step(true);
    const std::size_t longer = columns * std::max(plan.shape.rows, plan.shape.columns);
    sent_.reserve(longer);
    lost_.resize(longer);
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
    elements_.begin(data, residual);
    use_ = use;
  }

  /// The residual stays as it is, in a step in which the matrix is sent whole.
  void pass(const Residual& residual) {
    if (residual) elements_.pass(residual);
  }
  /// Subtracts from the residual of the last commit what it holds too much.
  void settle() { elements_.settle(); }

  /// What this rank's factor of a side is formed from: the other one, to be orthonormalized before.
  SeededFactor fixed(Side side) {
    return {factor(other(side)).data(), {seed_, plan_.number, 2 * use_ + static_cast<std::uint32_t>(side)}};
  }
  /// Begins this rank's factor of a side, from the orthonormalized other one.
  void multiply(Side side) {
    std::vector<float>& fixed = factor(other(side));
    const std::size_t columns = probe(side);
    std::vector<float>& mine = factor(side);
    mine.resize(columns * length(side, plan_.shape));
    elements_.multiply(side, columns, fixed.data(), mine.data());
  }
  /// Whether it is there.
  bool multiplied() const { return elements_.ended(); }
  /// Once it is: it is to be reduced where it is returned.
  std::span<float> product(Side side) {
    std::vector<float>& mine = factor(side);
    elements_.take(side, mine);
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
    const bool arrived = all_finite(factor(side)), keeps = elements_.has_residual();
    const FactorProduct mean{rank_, factor(Side::left).data(), factor(Side::right).data()};
    if (keeps && !(arrived && finite_)) {
      elements_.undo();
    } else if (keeps) {
      FactorProduct sent = mean;
      (side == Side::left ? sent.left : sent.right) = sent_.data();
      elements_.owe(sent);
    }
    if (arrived) return elements_.write(mean, keeps && keeps_rounding ? divisor : 0.0f);
    elements_.write_nan();
    return 0;  // counted where the factors were summed
  }

  void end_step(bool keep) {
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<float>& to = keep ? committed_[side] : factors_[side];
      const std::vector<float>& from = keep ? factors_[side] : committed_[side];
      to.assign(from.begin(), from.end());
    }
    keep ? committed_rank_ = rank_ : rank_ = committed_rank_;
    elements_.end_step(keep);
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
  const Elements& elements() const { return elements_; }
  Elements& elements() { return elements_; }
  void save(state::Records& records) const {
    for (const Side side : {Side::left, Side::right})
      records.add(kind(side), plan_.number, committed_rank_,
                  std::span<const float>(committed_[static_cast<std::size_t>(side)]));
  }
  /// Takes up factors. Of another rank, which the next step sets: the leading columns.
  void restore(std::span<const state::Record> records) {
    elements_.forget();
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
  static std::size_t most_rank(const PlannedMatrix& plan) {
    std::size_t most = 0;
    for (std::size_t form = 0; form < plan.settings.ranks.size(); ++form) most = std::max(most, plan.rank(form));
    return most;
  }

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

  PlannedMatrix plan_;
  std::uint64_t seed_;
  std::size_t rank_ = 0, committed_rank_ = 0, most_;
  double missed_ = 0;
  Orthogonalizer orthogonalizer_;
  std::array<std::vector<float>, 2> factors_, committed_;  ///< by side
  std::vector<float> sent_;                                ///< our factor, as it went into the mean
  std::vector<float> lost_;
  Elements elements_;
  std::uint32_t use_ = 0;
  bool finite_ = true;
};

using Matrix = BasicMatrix<HostElements>;

}  // namespace tightwire::low_rank
