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
};
/// A parameter that elements are chosen from.
struct ChoiceSource {
  ChoiceGroup group;
  const std::byte* data;
  ElementType type;
  std::uint64_t count;
  std::uint32_t first;       ///< place of its first element in the group
  std::uint32_t first_tile;  ///< of the group's
  const float* before;       ///< residual; null: none
  float* after;              ///< gets sums; may be `before`
};

/// The kernels of what follows, so that none is loaded while something runs.
void load_choice_kernels(int rank);

/// Residual += gradient, and nothing is chosen.
void add_residual(const ChoiceSource& source, int rank, Stream stream);
/// One pass: counts the next digit of those elements that have the digits so far. The first one adds residuals.
void count_digits(const ChoiceSource& source, int pass, int rank, Stream stream);
/// After all sources were counted: the digit of the k-th largest.
void pick_digit(const ChoiceGroup& group, std::uint32_t k, int pass, int rank, Stream stream);
/// After the last pass: how many a tile has, then how many are before it.
void count_tiles(const ChoiceSource& source, int rank, Stream stream);
void add_up_tiles(const ChoiceGroup& group, std::uint32_t tiles, int rank, Stream stream);
/// Writes places and values of what was chosen; of equal magnitudes the first. It is taken out of the residual; what is
/// not finite leaves no trace there.
void take_chosen(const ChoiceSource& source, int rank, Stream stream);

/// A change of one element.
struct ElementChange {
  std::uint32_t index;
  std::uint32_t bits;
};
/// Changes of elements of one parameter, each of another one.
struct ChangeJob {
  const ElementChange* changes;
  std::uint64_t count;
  std::byte* data;
  ElementType type;
  const float* before;
  float* after;
};
/// The element in the buffer becomes these bits.
void put_elements(const ChangeJob& job, int rank, Stream stream);
/// The residual becomes a float; these bits: as if the step had not happened.
inline constexpr std::uint32_t kUndoneBits = 0xffffffffu;
void set_residuals(const ChangeJob& job, int rank, Stream stream);
/// A float is added to the residual.
void add_to_residuals(const ChangeJob& job, int rank, Stream stream);

}  // namespace tightwire::cuda::detail
