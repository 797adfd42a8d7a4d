#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <tightwire/state.hpp>

namespace tightwire::low_rank {

/// Squared norms of one use, over the matrices of a bucket.
struct Energies {
  double captured = 0;  ///< of the product
  double last = 0;      ///< of that, what the next smaller rank would not have
  double missed = 0;    ///< of the mean gradient less the product, estimated
};

/// Which of several ranks comes next, so that the error is about a target: the next larger one while the error is above
/// it, the next smaller one when that is expected to stay a tenth below. Averages over a few uses, and stays for as
/// many. Ranks that see the same energies choose alike, whatever their compiler made of it: every product is by a power
/// of two or compared at once, so that nothing can be contracted into another rounding.
class RankChoice {
 public:
  RankChoice() = default;
  RankChoice(double target, std::size_t ranks) : target_(target), ranks_(ranks) {}

  /// Index among the ranks.
  std::size_t index() const { return now_.index; }

  void saw(const Energies& energies) {
    if (!std::isfinite(energies.captured) || !std::isfinite(energies.missed)) return;
    const std::array<double, 3> seen = {energies.captured, energies.last, energies.missed};
    for (std::size_t i = 0; i < seen.size(); ++i)
      now_.average[i] = now_.uses == 0 ? seen[i] : now_.average[i] + (seen[i] - now_.average[i]) * 0.25;
    ++now_.uses;
  }

  void end_step(bool keep) {
    if (!keep) {
      now_ = committed_;
      return;
    }
    if (now_.uses >= kUses) decide();
    committed_ = now_;
  }

  void save(state::Records& records, std::size_t number) const {
    records.add(state::Kind::rank_choice, number, committed_.index | committed_.uses << 32,
                std::span<const double>(committed_.average));
  }
  void restore(const state::Record& record) {
    if (record.bytes.size() != sizeof committed_.average) return;
    committed_.index = std::min<std::size_t>(record.detail & 0xffffffffu, ranks_ - 1);
    committed_.uses = record.detail >> 32;
    std::memcpy(committed_.average.data(), record.bytes.data(), record.bytes.size());
    now_ = committed_;
  }

 private:
  static constexpr std::uint64_t kUses = 8;

  struct Choice {
    std::size_t index = 0;
    std::uint64_t uses = 0;
    std::array<double, 3> average = {};
  };

  void decide() {
    const auto [captured, last, missed] = now_.average;
    const double total = captured + missed;
    const double most = target_ * target_;
    std::size_t next = now_.index;
    if (missed > most * total)
      next = std::min(next + 1, ranks_ - 1);
    else if (next > 0 && missed + last < kWellBelow * most * total)
      --next;
    if (next != now_.index) now_ = {next, 0, {}};
  }
  static constexpr double kWellBelow = 0.9 * 0.9;

  double target_ = 0;
  std::size_t ranks_ = 1;
  Choice now_, committed_;
};

}  // namespace tightwire::low_rank
