#include "recorder.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include <tightwire/agreement.hpp>

namespace convergence {
namespace {

/// Slots of the same length on every rank: those of the others, to rank 0.
template <class Element>
void to_rank_0(tightwire::Transport& transport, std::uint32_t channel, std::span<const std::span<Element>> slots) {
  using tightwire::Message;
  constexpr std::chrono::seconds kLimit{60};
  const std::uint64_t tag = tightwire::message_tag(channel, tightwire::FrameKind::greeting, 0, 0);
  const auto message = [&](Message::Kind kind, std::size_t peer, std::span<Element> slot) {
    return Message{kind, static_cast<int>(peer), tag, reinterpret_cast<std::byte*>(slot.data()), slot.size_bytes()};
  };
  std::vector<Message> round;
  const auto me = static_cast<std::size_t>(transport.rank());
  if (me != 0)
    round.push_back(message(Message::Kind::send, 0, slots[me]));
  else
    for (std::size_t peer = 1; peer < slots.size(); ++peer)
      round.push_back(message(Message::Kind::receive, peer, slots[peer]));
  if (!round.empty()) tightwire::wait(transport, transport.post(round), kLimit, "telling rank 0 what this rank saw");
}

}  // namespace

void Recorder::gradient(std::size_t rank, std::size_t step, std::span<const std::span<float>> parts) {
  std::vector<float>& slot = gradients_[step % 2][rank];
  slot.clear();
  for (const std::span<float> part : parts) slot.insert(slot.end(), part.begin(), part.end());
}

void Recorder::result(std::size_t step, std::span<const std::span<float>> parts) {
  const Slots& gradients = gradients_[step % 2];
  const auto ranks = static_cast<double>(gradients.size());
  true_sum_.resize(gradients[0].size());
  result_sum_.resize(gradients[0].size());
  double true_squares = 0, result_squares = 0;
  std::size_t i = 0;
  for (const std::span<float> part : parts)
    for (const float element : part) {
      double mean = 0;
      for (const std::vector<float>& gradient : gradients) mean += static_cast<double>(gradient[i]);
      mean /= ranks;
      const auto result = static_cast<double>(element);
      true_sum_[i] += mean;
      result_sum_[i] += result;
      true_squares += mean * mean;
      result_squares += result * result;
      if (mean != 0) ++not_zero_;
      if (mean != 0 && result == 0) ++flushed_;
      ++i;
    }
  true_squares_ += true_squares;
  true_lengths_ += std::sqrt(true_squares);
  result_lengths_ += std::sqrt(result_squares);
}

void Recorder::collect(tightwire::Transport& transport, std::uint32_t channel, Slots& slots) {
  const std::size_t elements = slots[static_cast<std::size_t>(transport.rank())].size();
  std::vector<std::span<float>> spans;
  for (std::vector<float>& slot : slots) {
    slot.resize(elements);
    spans.emplace_back(slot);
  }
  to_rank_0<float>(transport, channel, spans);
}

void Recorder::collect_gradients(tightwire::Transport& transport, std::uint32_t channel, std::size_t step) {
  collect(transport, channel, gradients_[step % 2]);
}

void Recorder::collect_residuals(tightwire::Transport& transport, std::uint32_t channel) {
  collect(transport, channel, residuals_);
  std::vector<std::span<double>> squares;
  for (double& each : owner_squares_) squares.emplace_back(&each, 1);
  to_rank_0<double>(transport, channel, squares);
}

void Recorder::residual(std::size_t rank, const tightwire::Session& session) {
  std::vector<float>& slot = residuals_[rank];
  slot.clear();
  for (tightwire::ParameterId id = 0; id < session.parameters().size(); ++id) {
    const auto kept = session.sender_residual(id);
    slot.insert(slot.end(), kept.begin(), kept.end());
    slot.resize(slot.size() + session.parameters()[id].count - kept.size());  // zeros where nothing is kept
  }
  owner_squares_[rank] = 0;
  for (tightwire::BucketId id = 0; id < session.buckets(); ++id)
    for (const float kept : session.owner_residual(id))
      owner_squares_[rank] += static_cast<double>(kept) * static_cast<double>(kept);
}

Balance Recorder::balance(bool rotated) const {
  double difference = 0, kept_squares = 0, unexplained = 0, owners = 0, length = true_squares_;
  double true_sum_squares = 0;
  for (std::size_t i = 0; i < true_sum_.size(); ++i) {
    const double missing = true_sum_[i] - result_sum_[i];
    double kept = 0;
    for (const std::vector<float>& residual : residuals_) kept += static_cast<double>(residual[i]);
    kept /= static_cast<double>(residuals_.size());
    difference += missing * missing;
    kept_squares += kept * kept;
    unexplained += (missing - kept) * (missing - kept);
    true_sum_squares += true_sum_[i] * true_sum_[i];
  }
  length = std::sqrt(std::max(length, true_sum_squares));
  for (const double squares : owner_squares_) owners += squares;
  Balance balance;
  balance.update_error = std::sqrt(difference) / length;
  // Where the elements lie that owners keep is the plan's business. That they could explain what is missing is enough.
  // A rotation of an odd power of two elements halves squares, so that its scale is exact.
  const double stretch = rotated ? std::numbers::sqrt2 : 1;
  const double not_at_senders =
      rotated ? std::sqrt(difference) - stretch * std::sqrt(kept_squares) : std::sqrt(unexplained);
  const double lost = (not_at_senders - stretch * std::sqrt(owners)) / length;
  balance.lost = std::isfinite(lost) && lost < 0 ? 0 : lost;  // residuals that are no numbers explain nothing
  balance.flushed_share = not_zero_ == 0 ? 0 : static_cast<double>(flushed_) / static_cast<double>(not_zero_);
  balance.norm_ratio = result_lengths_ / true_lengths_;
  return balance;
}

}  // namespace convergence
