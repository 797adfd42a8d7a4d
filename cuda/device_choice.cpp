#include "device_choice.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <tightwire/host/elements.hpp>

#include "places.hpp"

namespace tightwire::cuda::detail {
namespace {

/// The least and the largest number of elements that sparse::about_right takes for k.
std::size_t largest_found(std::size_t k) {
  std::size_t found = k + k * 3 / 10 + 1;
  while (found > k && !sparse::about_right(found, k)) --found;
  return found;
}
std::size_t least_found(std::size_t k) {
  std::size_t found = k * 8 / 10;
  while (found < k && !sparse::about_right(found, k)) ++found;
  return found;
}

/// In the first steps, if ever: no later one chooses more.
bool may_send_everything(const sparse::Plan& plan, const sparse::Group& group) {
  return plan.parameters[group.parameters.front()].settings.chosen(group.elements, 0) == group.elements;
}

}  // namespace

DeviceChoice::DeviceChoice(const sparse::Plan& plan, const MomentumOnDevice& momentum, int rank, Stream copies,
                           std::chrono::milliseconds timeout)
    : plan_(plan),
      momentum_(momentum),
      rank_(rank),
      timeout_(timeout),
      all_of_(plan.parameters.size()),
      copies_(copies),
      ended_(rank),
      groups_(plan.groups.size()),
      choices_(plan.groups.size()) {
  take_memory();
}

bool DeviceChoice::samples(const sparse::Group& group) const {
  return plan_.parameters[group.parameters.front()].settings.sampled;
}
/// With a warm-up the first steps choose the most.
std::size_t DeviceChoice::room_of(const sparse::Group& group, std::uint64_t committed) const {
  const std::size_t k = plan_.parameters[group.parameters.front()].settings.chosen(group.elements, committed);
  return samples(group) ? std::min(group.elements, largest_found(k)) : k;
}
std::uint32_t DeviceChoice::tiles_of(const sparse::Group& group) const {
  std::size_t tiles = 0;
  for (const std::size_t p : group.parameters) tiles += (plan_.parameters[p].count + kChoiceTile - 1) / kChoiceTile;
  return static_cast<std::uint32_t>(tiles);
}

void DeviceChoice::take_memory() {
  table_groups_.reserve(groups_.size());
  table_sources_.reserve(plan_.parameters.size());
  sample_groups_.reserve(groups_.size());
  sample_sources_.reserve(groups_.size());
  // Samples are groups of a source each.
  const std::size_t table_bytes =
      2 * groups_.size() * sizeof(ChoiceGroup) + (plan_.parameters.size() + groups_.size()) * sizeof(ChoiceSource);
  const auto on_device = [&](Places places) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const sparse::Group& group = plan_.groups[g];
      groups_[g].on_device = {.state = places.take<ChoiceState>(1),
                              .bins = places.take<std::uint32_t>(kChoiceBins),
                              .tiles = places.take<TileCount>(tiles_of(group)),
                              .places = places.take<std::uint32_t>(room_of(group, 0)),
                              .values = places.take<float>(room_of(group, 0)),
                              .k = 0,
                              .tile_count = tiles_of(group)};
      if (!samples(group)) continue;
      groups_[g].sample = places.take<float>(std::min(sparse::Sample::kMost, group.elements));
      groups_[g].of_sample = places.take<ChoiceState>(1);
      groups_[g].bins_of_sample = places.take<std::uint32_t>(kChoiceBins);
    }
    table_on_device_ = places.take<std::byte>(table_bytes);
    return places.bytes();
  };
  const auto pinned = [&](Places places) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      groups_[g].state = places.take<ChoiceState>(1);
      groups_[g].places = places.take<std::uint32_t>(room_of(plan_.groups[g], 0));
      groups_[g].values = places.take<float>(room_of(plan_.groups[g], 0));
      if (!may_send_everything(plan_, plan_.groups[g])) continue;
      for (const std::size_t p : plan_.groups[g].parameters)
        all_of_[p] = places.take<std::byte>(plan_.parameters[p].count * sizeof(float));
    }
    table_pinned_ = places.take<std::byte>(table_bytes);
    return places.bytes();
  };
  on_device_ = Memory(on_device(Places(nullptr)), Memory::Kind::device, rank_);
  pinned_ = Memory(pinned(Places(nullptr)), Memory::Kind::pinned, rank_);
  on_device(Places(on_device_.data()));
  pinned(Places(pinned_.data()));
}

void DeviceChoice::begin(const ReductionInput& input, Stream stream) {
  input_ = input;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const sparse::Group& group = plan_.groups[g];
    const SparseSettings& settings = plan_.parameters[group.parameters.front()].settings;
    groups_[g].chosen = settings.chosen(group.elements, input.committed);
    groups_[g].everything = groups_[g].chosen == group.elements;
    groups_[g].room = room_of(group, input.committed);
    begin_sample(groups_[g], group);
  }
  samples_ = {};
  sample_groups_.clear();
  sample_sources_.clear();
  table_ = {};
  table_.momentum = momentum_;
  table_groups_.clear();
  table_sources_.clear();
  for (const bool everything : {false, true}) tabulate(everything);
  put_table(stream);
  choose_largest(table_, samples_, rank_, stream);
  for (std::size_t g = 0; g < groups_.size(); ++g)
    groups_[g].everything ? bring_all(plan_.groups[g], stream) : bring(groups_[g], stream);
  ended_.record(stream, rank_);
}

void DeviceChoice::begin_sample(GroupMemory& memory, const sparse::Group& group) {
  memory.places_of_sample.reset();
  if (!samples(group) || memory.everything) return;
  const std::uint32_t stream = plan_.parameters[group.parameters.front()].number ^ sparse::rank_word(rank_);
  memory.places_of_sample.emplace(group.elements, sparse::SampleSeed{input_.seed, input_.use, stream});
}
/// Adds the sample as a group, of which the element is looked for that as many reach as are expected.
void DeviceChoice::tabulate_sample(const GroupMemory& memory, ChoiceGroup& group) {
  const sparse::Sample& sample = *memory.places_of_sample;
  group.sample = memory.sample;
  group.of_sample = memory.of_sample;
  group.sample_begin = sample.begin;
  group.sampled = sample.elements;
  group.sample_count = static_cast<std::uint32_t>(sample.count);
  group.least = static_cast<std::uint32_t>(least_found(memory.chosen));
  group.most = static_cast<std::uint32_t>(memory.room);
  const auto tiles = static_cast<std::uint32_t>((sample.count + kChoiceTile - 1) / kChoiceTile);
  ChoiceSource source{};
  source.data = reinterpret_cast<const std::byte*>(memory.sample);
  source.type = ElementType::f32;
  source.count = sample.count;
  source.chunks_before = samples_.chunks;
  sample_sources_.push_back(source);  // its group once that has a place
  ChoiceGroup of_sample{};
  of_sample.state = memory.of_sample;
  of_sample.bins = memory.bins_of_sample;
  of_sample.k = static_cast<std::uint32_t>(sample.expected(memory.chosen));
  sample_groups_.push_back(of_sample);
  samples_.chunks = samples_.all_chunks += (tiles + kTilesInChunk - 1) / kTilesInChunk;
  samples_.group_count = samples_.source_count = samples_.all_sources =
      static_cast<std::uint32_t>(sample_groups_.size());
}
/// What of the sample is in a source.
void DeviceChoice::place_sample(const sparse::Sample& sample, ChoiceSource& source) {
  const std::size_t begin = sample.before(source.first), end = sample.before(source.first + source.count);
  source.sample_first = static_cast<std::uint32_t>(begin);
  source.sample_count = static_cast<std::uint32_t>(end - begin);
}

/// Adds groups of which all elements are sent, or the others.
void DeviceChoice::tabulate(bool everything) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].everything != everything) continue;
    const auto* const group = reinterpret_cast<const ChoiceGroup*>(table_on_device_) + table_groups_.size();
    if (!everything) {
      table_groups_.push_back(groups_[g].on_device);
      table_groups_.back().k = static_cast<std::uint32_t>(groups_[g].chosen);
      if (groups_[g].places_of_sample) tabulate_sample(groups_[g], table_groups_.back());
    }
    std::uint32_t first_tile = 0;
    for (const std::size_t p : plan_.groups[g].parameters) {
      const sparse::PlannedSparse& parameter = plan_.parameters[p];
      const Residual& residual = input_.senders[p];
      const Residual momentum = input_.momenta.empty() ? Residual{} : input_.momenta[p];
      if (parameter.count == 0 || (everything && !residual)) continue;
      const auto tiles = static_cast<std::uint32_t>((parameter.count + kChoiceTile - 1) / kChoiceTile);
      table_sources_.push_back({.group = everything ? nullptr : group,
                                .data = static_cast<const std::byte*>(input_.data[p]),
                                .type = parameter.type,
                                .count = parameter.count,
                                .first = plan_.place_in_group[p],
                                .first_tile = std::exchange(first_tile, first_tile + tiles),
                                .tiles_before = table_.tiles,
                                .chunks_before = table_.all_chunks,
                                .before = residual.before,
                                .after = residual.after,
                                .momentum_before = momentum.before,
                                .momentum_after = momentum.after,
                                .sample_first = 0,
                                .sample_count = 0});
      if (groups_[g].places_of_sample) place_sample(*groups_[g].places_of_sample, table_sources_.back());
      table_.tiles += everything ? 0 : tiles;
      table_.all_chunks += (tiles + kTilesInChunk - 1) / kTilesInChunk;
    }
  }
  table_.all_sources = static_cast<std::uint32_t>(table_sources_.size());
  if (everything) return;
  table_.group_count = static_cast<std::uint32_t>(table_groups_.size());
  table_.source_count = table_.all_sources;
  table_.chunks = table_.all_chunks;
}

/// The one before was read: what came of it has been waited for.
void DeviceChoice::put_table(Stream stream) {
  std::size_t at = 0;
  const auto put = [&](const auto& entries) {
    using Entry = typename std::remove_cvref_t<decltype(entries)>::value_type;
    const std::size_t bytes = entries.size() * sizeof(Entry), begin = std::exchange(at, at + bytes);
    if (bytes != 0) std::memcpy(table_pinned_ + begin, entries.data(), bytes);
    return reinterpret_cast<const Entry*>(table_on_device_ + begin);
  };
  table_.groups = put(table_groups_);
  table_.sources = put(table_sources_);
  samples_.groups = put(sample_groups_);
  for (std::size_t i = 0; i < sample_sources_.size(); ++i) sample_sources_[i].group = samples_.groups + i;
  samples_.sources = put(sample_sources_);
  if (at != 0)
    require(cudaMemcpyAsync(table_on_device_, table_pinned_, at, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync",
            rank_);
}

void DeviceChoice::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync", rank_);
  copied_bytes_ += bytes;
}
/// As much as may have been chosen: how much was is not known before.
void DeviceChoice::bring(const GroupMemory& memory, Stream stream) {
  copy(memory.state, memory.on_device.state, sizeof(ChoiceState), stream);
  copy(memory.places, memory.on_device.places, memory.room * sizeof(std::uint32_t), stream);
  copy(memory.values, memory.on_device.values, memory.room * sizeof(float), stream);
}

void DeviceChoice::bring_all(const sparse::Group& group, Stream stream) {
  for (const std::size_t p : group.parameters) {
    const Sums sums = sums_of(p);
    copy(all_of_[p], sums.data, plan_.parameters[p].count * element_bytes(sums.type), stream);
  }
}

std::span<const sparse::Choice> DeviceChoice::read() {
  forgotten_ = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupMemory& memory = groups_[g];
    choices_[g] = {{}, {}, memory.everything};
    if (memory.everything) continue;
    const std::size_t count = memory.state->chosen;
    choices_[g].places = {memory.places, count};
    choices_[g].values = {memory.values, count};
    forgotten_ += memory.state->forgotten;
  }
  return choices_;
}

DeviceChoice::Sums DeviceChoice::sums_of(std::size_t parameter) const {
  const Residual& residual = input_.senders[parameter];
  if (residual) return {reinterpret_cast<const std::byte*>(residual.after), ElementType::f32};
  return {static_cast<const std::byte*>(input_.data[parameter]), plan_.parameters[parameter].type};
}
void DeviceChoice::read_all(const sparse::Piece& piece, std::span<float> values) const {
  const ElementType type = sums_of(piece.parameter).type;
  const std::byte* const from = all_of_[piece.parameter] + piece.begin * element_bytes(type);
  host::widen(host::level(), type, from, piece.count, values.data());
}
void DeviceChoice::copy_all(const sparse::Piece& piece, std::span<float> values) {
  const Sums sums = sums_of(piece.parameter);
  const std::size_t bytes = piece.count * element_bytes(sums.type);
  // What was too small is kept: to free it waits for the whole device.
  if (whole_.empty() || whole_.back().size() < bytes)
    whole_.emplace_back(bytes + bytes / 2, Memory::Kind::pinned, rank_);
  copy(whole_.back().data(), sums.data + piece.begin * element_bytes(sums.type), bytes, copies_);
  if (!ends_by(copies_, deadline_after(timeout_)))
    throw Error(Errc::timeout, "rank " + std::to_string(rank_) + ": a copy to the host was not done after " +
                                   std::to_string(timeout_.count()) + " ms");
  host::widen(host::level(), sums.type, whole_.back().data(), piece.count, values.data());
}

void DeviceChoice::leave_memory() noexcept {
  on_device_.leave();
  pinned_.leave();
  for (Memory& memory : whole_) memory.leave();
}

}  // namespace tightwire::cuda::detail
