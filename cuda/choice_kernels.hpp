#pragma once
// The elements of largest magnitude, as sparse::Selection chooses them on the host.
#include <cstddef>
#include <cstdint>

#include <tightwire/cuda.hpp>
#include <tightwire/element.hpp>

namespace tightwire::cuda::detail {

/// What is known of the k-th largest magnitude, a number of 31 bits of which digit after digit is found; on the device.
struct ChoiceState {
  std::uint32_t digits;          ///< of the k-th magnitude that are known; in the end all of it
  std::uint32_t left;            ///< of those with these digits so many are among the k largest
  std::uint32_t chosen;          ///< in the end; fewer than k where there are zeros
  std::uint32_t found;           ///< elements that reach the threshold of a sample
  std::uint32_t settled;         ///< not 0: by that threshold
  unsigned long long forgotten;  ///< elements that are not finite and were not chosen
};
/// Of a tile of elements: those above the k-th magnitude, and those that equal it; then how many of each are before.
struct TileCount {
  std::uint32_t above, equal;
};

inline constexpr std::uint32_t kChoiceTile = 2048;  ///< elements
inline constexpr int kChoicePasses = 3;             ///< over the elements, one for each digit
inline constexpr std::uint32_t kChoiceBins = 2048;
/// The digit of a pass is the bits of a magnitude from here on, 11 of them, 9 in the last.
constexpr std::uint32_t choice_shift(int pass) { return pass == 0 ? 20 : pass == 1 ? 9 : 0; }

/// What a group of parameters shares whose elements are chosen from together.
struct ChoiceGroup {
  ChoiceState* state;
  std::uint32_t* bins;  ///< [kChoiceBins], zeros between passes
  TileCount* tiles;
  std::uint32_t* places;  ///< out: of what was chosen, in the group, ascending
  float* values;          ///< out: sums of gradient and residual there
  std::uint32_t k;
  std::uint32_t tile_count;
  // Of a choice by the threshold of a sample.
  float* sample = nullptr;           ///< null: the choice is exact
  ChoiceState* of_sample = nullptr;  ///< its digits become the threshold
  std::uint64_t sample_begin = 0;    ///< as in Sample, with the next two
  std::uint64_t sampled = 0;         ///< elements
  std::uint32_t sample_count = 1;
  std::uint32_t least = 0, most = 0;  ///< elements that may be found; else the choice is exact
};
/// As in MomentumCorrection.
struct MomentumOnDevice {
  float factor = 0.0f;  ///< 0: off
  bool nesterov = false;
  bool masking = true;
};
/// A parameter that elements are chosen from; it has some.
struct ChoiceSource {
  const ChoiceGroup* group;  ///< on the device; null: the residual is added, and nothing chosen
  const std::byte* data;
  ElementType type;
  std::uint64_t count;
  std::uint32_t first;                        ///< place of its first element in the group
  std::uint32_t first_tile;                   ///< of the group's
  std::uint32_t tiles_before, chunks_before;  ///< of all sources
  const float* before;                        ///< residual; null: none
  float* after;                               ///< gets sums; may be `before`
  const float* momentum_before;               ///< null: none
  float* momentum_after;                      ///< may be `momentum_before`
  std::uint32_t sample_first, sample_count;   ///< of the group's sample, what is in it
};
/// All of a bucket; on the device. A chunk is what a block counts in a pass: some tiles, so that less is added up in
/// memory. Sources of which nothing is chosen are the last.
struct ChoiceTable {
  const ChoiceGroup* groups;
  const ChoiceSource* sources;
  std::uint32_t group_count = 0, source_count = 0, all_sources = 0;
  std::uint32_t tiles = 0, chunks = 0, all_chunks = 0;
  MomentumOnDevice momentum = {};
};
inline constexpr std::uint32_t kTilesInChunk = 8;

/// The kernels of what follows, so that none is loaded while something runs.
void load_choice_kernels(int rank);

/// Puts a choice on a stream: the first pass adds residuals, each counts a digit of all elements that have the k-th
/// magnitude's digits so far, and picks the next; then tiles are counted, and what was chosen is written out, of equal
/// magnitudes the first. It is taken out of the residual; what is not finite leaves no trace there.
///
/// `samples`: those of groups that have some, as groups and sources of their own. What reaches the threshold is chosen
/// if it is about k elements; passes behind that have nothing to do then.
void choose_largest(const ChoiceTable& table, const ChoiceTable& samples, int rank, Stream stream);

/// A change of one element.
struct ElementChange {
  std::uint32_t index;
  std::uint32_t bits;
};
enum class ChangeKind : std::uint32_t {
  element,      ///< the buffer holds these bits
  residual,     ///< the residual is this float; kUndoneBits: as if the step had not happened
  momentum,     ///< the same of the momentum
  add_residual  ///< this float is added to the residual
};
inline constexpr std::uint32_t kUndoneBits = 0xffffffffu;
/// Changes of elements of one parameter, up to the next run.
struct ChangeRun {
  std::uint64_t first;  ///< its first change
  ChangeKind kind;
  ElementType type;
  std::byte* data;
  const float* before;
  float* after;
};
/// Changes of different elements, or of the same in different ways.
struct ChangeJob {
  const ElementChange* changes;
  std::uint64_t begin, end;
  const ChangeRun* runs;  ///< the first has `begin`
  std::uint32_t run_count;
};
void change_elements(const ChangeJob& job, int rank, Stream stream);

/// data := what the optimizer is to apply, of a gradient that all ranks hold: host::apply_momentum.
struct MomentumJob {
  std::byte* data;
  ElementType type;
  std::uint64_t count;
  const float* before;
  float* after;  ///< may be `before`
  MomentumOnDevice momentum;
};
void apply_momentum(const MomentumJob& job, int rank, Stream stream);

}  // namespace tightwire::cuda::detail
