#include "random_exchange.hpp"

#include <algorithm>

#include "places.hpp"

namespace tightwire::cuda::detail {

RandomExchange::RandomExchange(const Bucket& bucket, std::vector<std::shared_ptr<const Coder>> coders,
                               FrameIdentity identity, float divisor, BucketExchange::Place place)
    : bucket_(bucket),
      divisor_(divisor),
      rank_(place.rank),
      report_(place.report),
      inner_(bucket.random_plan, bucket.drawn_elements, std::move(coders), identity, divisor, place) {
  const std::vector<PlannedParameter>& drawn = bucket.drawn_elements;
  const auto me = static_cast<std::size_t>(rank_);
  const bool two_shot = bucket.random_plan.algorithm == Algorithm::two_shot;
  const std::size_t owned = two_shot ? bucket.random_plan.owned[me] : 0;
  std::size_t longest = owned;
  for (const PlannedParameter& parameter : drawn) longest = std::max(longest, parameter.count);
  const auto lay_out = [&](Places places) {
    drawn_.clear();
    overflows_ = places.take<unsigned long long>(1);
    nothing_ = places.take<float>(longest);
    owner_lost_ = owned != 0 ? places.take<float>(owned) : nullptr;
    for (const PlannedParameter& parameter : drawn) {
      Drawn& mine = drawn_.emplace_back();
      mine.indices = places.take<std::uint32_t>(parameter.count);
      mine.values = places.take<float>(parameter.count);
      mine.lost = parameter.coder->lossless(ElementType::f32) ? nullptr : places.take<float>(parameter.count);
    }
    return places.bytes();
  };
  memory_ = Memory(lay_out(Places(nullptr)), Memory::Kind::device, rank_);
  lay_out(Places(memory_.data()));
  for (const Drawn& each : drawn_) data_.push_back(each.values);
  senders_.resize(drawn_.size());
  if (!two_shot) return;
  for (const Chunk& chunk : bucket.random_plan.chunks)
    for (const Slice& slice : chunk.shares[me].slices) {
      Drawn& mine = drawn_[slice.parameter];
      mine.own_begin = slice.begin;
      mine.own_count = slice.count;
      mine.error_at = slice.error_at;
    }
}

DrawnElements RandomExchange::elements(std::size_t p) const {
  return {.seed = input_.seed,
          .use = input_.use,
          .parameter = bucket_.planned_random[p].number,
          .elements = bucket_.planned_random[p].count,
          .runs = bucket_.drawn_elements[p].count,
          .indices = drawn_[p].indices};
}
/// A parameter without elements has no residual, whatever the others have.
bool RandomExchange::feedback() const {
  return std::any_of(input_.senders.begin(), input_.senders.end(),
                     [](const Residual& residual) { return static_cast<bool>(residual); });
}

void RandomExchange::gather(Stream stream) {
  auto* const forgotten = reinterpret_cast<unsigned long long*>(inner_.count_of_ours());
  for (std::size_t p = 0; p < drawn_.size(); ++p) {
    const sparse::PlannedSparse& parameter = bucket_.planned_random[p];
    const Residual& residual = input_.senders[p];
    const auto* const data = static_cast<const std::byte*>(input_.data[p]);
    const std::size_t runs = bucket_.drawn_elements[p].count;
    gather_drawn({.drawn = elements(p),
                  .data = data,
                  .type = parameter.type,
                  .before = residual.before,
                  .weight = static_cast<float>(parameter.count) / static_cast<float>(runs),
                  .values = drawn_[p].values},
                 rank_, stream);
    senders_[p] = residual && drawn_[p].lost != nullptr ? Residual{nothing_, drawn_[p].lost} : Residual{};
    if (!residual) continue;
    keep_undrawn({.drawn = elements(p),
                  .data = data,
                  .type = parameter.type,
                  .values = drawn_[p].values,
                  .before = residual.before,
                  .after = residual.after,
                  .forgotten = forgotten},
                 rank_, stream);
  }
}

void RandomExchange::encode(const ReductionInput& input, Stream stream) {
  input_ = input;
  ReductionInput inner = input;
  inner.data = data_;
  inner.senders = senders_;
  inner.owner = owner_lost_ != nullptr && feedback() ? Residual{nothing_, owner_lost_} : Residual{};
  inner_.begin(inner, stream);
  gather(stream);
  inner_.encode(stream);
}

void RandomExchange::exchange(Transport& transport, Stream stream) {
  inner_.exchange(transport, stream);
  for (std::size_t p = 0; p < drawn_.size(); ++p) {
    const sparse::PlannedSparse& parameter = bucket_.planned_random[p];
    const Drawn& mine = drawn_[p];
    const std::size_t bytes = parameter.count * element_bytes(parameter.type);
    auto* const data = static_cast<std::byte*>(input_.data[p]);
    if (bytes != 0) require(cudaMemsetAsync(data, 0, bytes, stream), "cudaMemsetAsync", rank_);
    scatter_drawn({.drawn = elements(p),
                   .data = data,
                   .type = parameter.type,
                   .values = mine.values,
                   .before = input_.senders[p].before,
                   .residual = input_.senders[p].after,
                   .lost = mine.lost,
                   .owner_lost = mine.lost != nullptr && owner_lost_ != nullptr ? owner_lost_ + mine.error_at : nullptr,
                   .own_begin = mine.own_begin,
                   .own_count = mine.own_count,
                   .divisor = divisor_,
                   .overflows = overflows_},
                  rank_, stream);
  }
  report_drawn(overflows_, &report_->nonfinite, rank_, stream);
}

Statistics RandomExchange::statistics() const {
  Statistics statistics = inner_.statistics();
  statistics.gradient_bytes = 0;
  for (const sparse::PlannedSparse& parameter : bucket_.planned_random)
    statistics.gradient_bytes += parameter.count * element_bytes(parameter.type);
  return statistics;
}

}  // namespace tightwire::cuda::detail
