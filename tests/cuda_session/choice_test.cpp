// What chooses elements on a device, and what changes them, without a Session: memory, launches, large samples.
#include <algorithm>
#include <functional>
#include <vector>

#include <tightwire/codec.hpp>

#include "choice_kernels.hpp"
#include "device_steps.hpp"
#include "emulated.hpp"
#include "resources.hpp"
#include "sparse_exchange.hpp"
#include "unit/support/small_model.hpp"

namespace tightwire::testing::cuda_choice_test {
namespace {

sparse::Plan plan_of(int ranks, const std::string& codec, Algorithm algorithm) {
  PlanOptions options;
  options.algorithm = algorithm;
  return sparse::make_plan({{100'000, ElementType::f32, *parse_codec(codec).sparse()}}, ranks, options);
}

/// 1,000 are chosen; 8 bytes each, on the device and in pinned memory.
TEST(CudaChoice, MemoryForChangesDoesNotGrowWithRanksWhereOwnersChooseAgain) {
  const auto expected = [](int ranks, const std::string& codec, Algorithm algorithm) {
    return cuda::detail::expected_changes(plan_of(ranks, codec, algorithm));
  };
  const std::size_t of_two = expected(2, "topk:ratio=0.01", Algorithm::two_shot);
  EXPECT_GE(of_two, 3 * 1000u);
  EXPECT_LT(of_two, 5 * 1000u);
  EXPECT_LE(expected(64, "topk:ratio=0.01", Algorithm::two_shot),
            of_two + 62 * 4 * sizeof(cuda::detail::ChangeRun) / 8);
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot}) {
    EXPECT_GE(expected(64, "topk:ratio=0.01,union", algorithm), 64 * 1000u);
    EXPECT_LT(expected(64, "topk:ratio=0.01,union", algorithm), 70 * 1000u);
  }
}

/// Each parameter gets back what was dropped, and what was lost by being rounded.
TEST(CudaChoice, WhatIsGivenBackToManyParametersTakesTwoLaunches) {
  use(0);
  Model model;
  for (int p = 0; p < 10; ++p)
    model.push_back({std::to_string(p), {300}, ElementType::bf16, parse_codec("topk:ratio=0.1")});
  const std::uint64_t before = cuda_emulation::launches("change_chosen_kernel");
  run_all_devices(2, [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model, two_shot());
    Gradients gradients(model);
    gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
    DeviceGradients on_device(model);
    const TestStream stream;
    on_device.upload(gradients, stream);
    session->all_reduce(on_device.pointers(), stream);
    session->commit();
    session->synchronize();
  });
  EXPECT_EQ(cuda_emulation::launches("change_chosen_kernel") - before, 2 * 2u);
}

constexpr std::uint32_t kElements = 40'000, kSample = 20'000, kChosen = 400, kExpected = kSample * kChosen / kElements;

/// What is chosen of a group by the threshold of a sample, and where that is.
struct Group {
  std::vector<float> values;
  std::uint64_t begin;  ///< of the sample

  std::vector<std::uint32_t> chosen() const {
    std::vector<std::uint32_t> sample;
    for (std::uint64_t i = 0; i < kSample; ++i) sample.push_back(key((begin + i * kElements) / kSample));
    std::nth_element(sample.begin(), sample.begin() + kExpected - 1, sample.end(), std::greater<>{});
    std::vector<std::uint32_t> places;
    for (std::uint32_t i = 0; i < kElements; ++i)
      if (key(i) >= sample[kExpected - 1]) places.push_back(i);
    return places;
  }
  std::uint32_t key(std::size_t i) const { return sparse::magnitude_key(values[i]); }
};

using namespace cuda::detail;

constexpr std::uint32_t kGroups = 2, kRoom = 600;
constexpr std::uint32_t kTiles = (kElements + kChoiceTile - 1) / kChoiceTile;
constexpr std::uint32_t kChunks = (kTiles + kTilesInChunk - 1) / kTilesInChunk;
constexpr std::uint32_t kSampleChunks = (kSample + kChoiceTile * kTilesInChunk - 1) / (kChoiceTile * kTilesInChunk);

/// Memory of the device, and its way there and back.
class Arrays {
 public:
  explicit Arrays(cudaStream_t stream) : stream_(stream) {}
  template <class T>
  T* take(std::size_t count) {
    memories_.emplace_back(count * sizeof(T), Memory::Kind::device, 0);
    return reinterpret_cast<T*>(memories_.back().data());
  }
  template <class T>
  T* put(const std::vector<T>& from) {
    T* const at = take<T>(from.size());
    must(cudaMemcpyAsync(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream_));
    return at;
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) const {
    std::vector<T> to(count);
    must(cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    must(cudaStreamSynchronize(stream_));
    return to;
  }

 private:
  cudaStream_t stream_;
  std::vector<Memory> memories_;
};

ChoiceGroup group_on_device(Arrays& arrays, const Group& group) {
  ChoiceGroup made{.state = arrays.take<ChoiceState>(1),
                   .bins = arrays.take<std::uint32_t>(kChoiceBins),
                   .tiles = arrays.take<TileCount>(kTiles),
                   .places = arrays.take<std::uint32_t>(kRoom),
                   .values = arrays.take<float>(kRoom),
                   .k = kChosen,
                   .tile_count = kTiles};
  made.sample = arrays.take<float>(kSample);
  made.of_sample = arrays.take<ChoiceState>(1);
  made.sample_begin = group.begin;
  made.sampled = kElements;
  made.sample_count = kSample;
  made.least = 1;
  made.most = kRoom;
  return made;
}
ChoiceGroup sample_on_device(Arrays& arrays, const ChoiceGroup& of) {
  return {.state = of.of_sample,
          .bins = arrays.take<std::uint32_t>(kChoiceBins),
          .tiles = nullptr,
          .places = nullptr,
          .values = nullptr,
          .k = kExpected,
          .tile_count = 0};
}
/// The n-th of sources that have as many elements each.
ChoiceSource source_of(const float* data, std::uint32_t count, std::uint32_t number, std::uint32_t chunks) {
  ChoiceSource source{};
  source.data = reinterpret_cast<const std::byte*>(data);
  source.type = ElementType::f32;
  source.count = count;
  source.tiles_before = number * kTiles;
  source.chunks_before = number * chunks;
  source.sample_count = kSample;
  return source;
}
ChoiceTable table_of(Arrays& arrays, const std::vector<ChoiceGroup>& groups, std::vector<ChoiceSource> sources,
                     std::uint32_t chunks) {
  const ChoiceGroup* const at = arrays.put(groups);
  for (std::size_t g = 0; g < kGroups; ++g) sources[g].group = at + g;
  ChoiceTable table{at, arrays.put(sources)};
  table.group_count = table.source_count = table.all_sources = kGroups;
  table.tiles = kGroups * kTiles;
  table.chunks = table.all_chunks = kGroups * chunks;
  return table;
}

/// More than a block counts of each sample, so that blocks must tell the groups apart.
TEST(CudaChoice, LargeSamplesOfSeveralGroups) {
  prepare_devices(1);
  must(cudaSetDevice(0));
  use(2);
  load_choice_kernels(0);
  const TestStream stream;
  Arrays arrays(stream);
  std::vector<Group> groups;
  std::vector<ChoiceGroup> of_elements, of_samples;
  std::vector<ChoiceSource> sources, sample_sources;
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    FastRandom random(g + 1);
    Group& group = groups.emplace_back(Group{std::vector<float>(kElements), 123 + 7777 * g});
    for (float& x : group.values) x = random.bell() * (g == 0 ? 1.0f : 1000.0f);
    const ChoiceGroup& mine = of_elements.emplace_back(group_on_device(arrays, group));
    of_samples.push_back(sample_on_device(arrays, mine));
    sources.push_back(source_of(arrays.put(group.values), kElements, g, kChunks));
    sample_sources.push_back(source_of(mine.sample, kSample, g, kSampleChunks));
  }
  const ChoiceTable elements = table_of(arrays, of_elements, sources, kChunks);
  choose_largest(elements, table_of(arrays, of_samples, sample_sources, kSampleChunks), 0, stream);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const ChoiceState state = arrays.get(of_elements[g].state, 1)[0];
    const auto places = arrays.get(of_elements[g].places, kRoom);
    const auto values = arrays.get(of_elements[g].values, kRoom);
    const std::vector<std::uint32_t> expected = groups[g].chosen();
    ASSERT_NE(state.settled, 0u);
    ASSERT_EQ(state.chosen, expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(places[i], expected[i]);
      ASSERT_EQ(values[i], groups[g].values[expected[i]]);
    }
  }
  EXPECT_EQ(cuda_emulation::last_report(), "");
}

}  // namespace
}  // namespace tightwire::testing::cuda_choice_test
