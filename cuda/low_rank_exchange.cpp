#include "low_rank_exchange.hpp"

#include <algorithm>
#include <cstring>

namespace tightwire::cuda::detail {
namespace {

/// Of the largest round: a frame to each rank and one from it.
std::size_t round_bytes(const low_rank::Plan& plan) {
  std::size_t most = 0;
  for (const low_rank::Form& form : plan.forms)
    for (const BucketPlan& side : form.factors)
      for (const Chunk& chunk : side.chunks)
        for (const Share& share : chunk.shares)
          most = std::max(most, 2 * static_cast<std::size_t>(side.ranks) * (share.frame_bytes() + 256));
  return most;
}

}  // namespace

LowRankExchange::LowRankExchange(const low_rank::Plan& plan, const Inner::Identities& identities, float divisor,
                                 std::uint64_t seed, const Place& place)
    : plan_(plan),
      place_(place),
      messages_(place.messages),
      inner_(messages_, plan, identities, divisor, seed, place.elements) {
  place_.messages.reserve(round_bytes(plan));
  if (plan.start_step != 0) take_memory_for_whole(identities[2], divisor);
}
void LowRankExchange::take_memory_for_whole(const FrameIdentity& identity, float divisor) {
  const int rank = place_.elements.rank;
  std::vector<std::shared_ptr<const Coder>> coders;
  for (const PlannedParameter& parameter : plan_.whole_parameters) {
    coders.push_back(make_coder(Codec{}, parameter.type));
    coders.back()->load();
  }
  frames_ = Memory(BucketExchange::frame_bytes(plan_.whole, place_.ranks), Memory::Kind::device, rank);
  report_ = Memory(sizeof(Report), Memory::Kind::pinned, rank);
  std::memset(report_.data(), 0, report_.size());
  whole_.emplace(plan_.whole, plan_.whole_parameters, std::move(coders), identity, divisor,
                 BucketExchange::Place{rank, place_.ranks, frames_.data(), reinterpret_cast<Report*>(report_.data())});
  no_residuals_.resize(plan_.whole_parameters.size());
}

void LowRankExchange::begin(const ReductionInput& input) {
  const tightwire::detail::FloatEnvironment environment;
  if (input.committed >= plan_.start_step) {
    inner_.begin(input);
    inner_.start();
    return;
  }
  inner_.pass(input.senders);
  ReductionInput exact = input;
  exact.senders = no_residuals_;
  exact.owner = {};
  whole_->encode(exact, place_.elements.encodes);
  sends_whole_ = true;
}
bool LowRankExchange::advance() {
  const tightwire::detail::FloatEnvironment environment;
  if (sends_whole_) {
    whole_->exchange(place_.channel, place_.elements.exchanges);
    statistics_ = whole_->statistics();
    statistics_.calls = 0;
    sends_whole_ = false;
    return true;
  }
  const bool progressed = inner_.advance();
  statistics_ = inner_.statistics();
  statistics_.calls = 0;
  return progressed;
}

std::uint64_t LowRankExchange::host_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& matrix : inner_.matrices()) bytes += matrix.elements().copied_bytes();
  return bytes;
}
std::uint64_t LowRankExchange::late_nonfinite() const {
  std::uint64_t met = whole_ ? whole_->report().nonfinite : 0;
  for (const auto& matrix : inner_.matrices()) met += matrix.elements().overflows();
  return met;
}
void LowRankExchange::leave_memory() noexcept {
  for (auto& matrix : inner_.matrices()) matrix.elements().leave_memory();
  frames_.leave();
  report_.leave();
}

}  // namespace tightwire::cuda::detail
