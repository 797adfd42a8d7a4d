#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/codec/description.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/detail/hd.hpp>

namespace tightwire::host {

/// Slices are worked on in tiles: as many whole blocks as make this many elements, at least one block. What passes from
/// loop to loop stays in the innermost cache.
inline constexpr std::size_t kTile = 512;
using tightwire::detail::kLargestBlock;
inline constexpr std::size_t kLargestTile = kLargestBlock;
/// Loops take whole units of elements. A slice that ends within one goes through memory with room.
inline constexpr std::size_t kUnit = 16;
/// How many elements ahead of its loads a loop asks for memory: so far that memory can answer in time, and less than
/// what would push out of the innermost cache what the loop works on.
inline constexpr std::size_t kAhead = 1024;
/// Contributions that one loop adds up in registers.
inline constexpr std::size_t kMostSources = 4;

/// What the loops and the code around them must know of a codec.
struct Form {
  std::size_t bits;          ///< of a code on the wire
  int base;                  ///< not 0: codes take as many values, and are digits instead
  std::size_t code_bytes;    ///< of a code between the loops: 1, 2 or 4
  std::size_t param_bytes;   ///< per part on the wire
  std::size_t shared_bytes;  ///< per block on the wire, before the Params of its parts
  std::size_t block;         ///< elements in a block
  std::size_t part;          ///< elements that share a Scale: a block, a part of one, or all where there are no scales
  std::size_t parts_per_block;
  std::size_t grain;  ///< elements that must stay together: a block, or a rotated block
  std::size_t tile;   ///< elements worked on at a time

  constexpr std::size_t parts(std::size_t elements) const { return (elements + part - 1) / part; }
  constexpr std::size_t blocks(std::size_t elements) const { return (elements + block - 1) / block; }
  /// Where Shared and Params lie of the block that begins with element `begin`.
  constexpr std::size_t params_at(std::size_t begin) const {
    return begin / block * (shared_bytes + parts_per_block * param_bytes);
  }
};

// One tile, in fp32. `count` is a number of whole units, all of which may be read and written.

/// The statistics of x + added, one per part. `added` may be null.
struct StatisticsJob {
  const float* x;
  const float* added;
  std::size_t count;
  std::size_t part;
  void* stats;
};
/// The second pass, over the statistics of the first. Of the last unit only `elements` count.
struct MomentsJob {
  const float* x;
  const float* added;
  std::size_t elements;
  std::size_t part;
  void* stats;
};
/// x + added under known scales -> codes, values, difference. What is null is not wanted.
struct QuantizeJob {
  const float* x;
  const float* added;
  const float* noise;  ///< rounds stochastically; null: to nearest
  std::size_t count;
  std::size_t part;
  const void* scales;
  std::byte* codes;
  float* difference;  ///< what the values miss
  float* values;      ///< decoded
  bool codes_past_cache;
  bool difference_past_cache;
};
/// Statistics of parts -> Params on the wire (null: not wanted) and scales.
struct ScalesJob {
  const void* stats;
  std::size_t parts;
  std::size_t parts_per_block;
  std::byte* params;
  void* scales;
  bool unbiased;  ///< for stochastic rounding
};
/// Scales by which codes are chosen -> Params on the wire (null: not wanted) and steps that fit the codes best.
struct FitJob {
  const float* x;
  const float* added;
  std::size_t elements;
  std::size_t part;
  const void* stats;
  std::byte* params;
  void* scales;
};
/// Params on the wire -> scales.
struct ScalesOfJob {
  const std::byte* params;
  std::size_t parts;
  std::size_t parts_per_block;
  void* scales;
};
/// Codes -> values.
struct DequantizeJob {
  const std::byte* codes;
  std::size_t count;
  std::size_t part;
  const void* scales;
  float* values;
  bool past_cache;
};
/// A contribution to a sum: codes with their scales, or values.
struct Source {
  const std::byte* codes;
  const void* scales;
  const float* values;
};
/// The sum of contributions in their order, up to kMostSources at a time.
struct AccumulateJob {
  const Source* sources;
  std::size_t number;
  bool first;  ///< `sum` holds nothing yet
  bool last;   ///< divide
  float divisor;
  float* sum;
  std::size_t count;
  std::size_t part;
};
/// Where the bits come from by which residuals in bf16 are rounded.
struct ResidualBits {
  const int* random;
  std::size_t place;  ///< of the first element in a group of those
};
/// Whole tiles of fp32, with a residual or none, -> Params, codes and residual, all in one loop.
struct TilesJob {
  const float* x;
  const float* added;               ///< null: no residual in fp32
  const std::uint16_t* added_bf16;  ///< null: no residual in bf16
  const float* noise;               ///< rounds stochastically; null: to nearest
  std::size_t count;
  std::size_t tile;
  std::size_t part;
  std::size_t parts_per_block;
  std::byte* params;
  std::byte* codes;
  float* difference;
  std::uint16_t* difference_bf16;
  ResidualBits bits;
  bool codes_past_cache;       ///< only where they are aligned to 16 bytes
  bool difference_past_cache;  ///< only where it is aligned to lanes, in bf16 to 16 bytes
};
/// Codes of a byte each -> `bits` bits each on the wire, and back with the top bit extended. The codes have room for
/// whole units.
struct PackJob {
  const std::byte* codes;
  std::size_t count;
  std::byte* wire;
};
struct UnpackJob {
  const std::byte* wire;
  std::size_t count;
  std::byte* codes;
};
/// A part with a NaN or an infinity in it, or with a value that the type of the buffer cannot hold.
struct NonFiniteJob {
  const float* x;
  std::size_t count;
  const void* scale;
  Residual residual;   ///< where the difference goes
  std::byte* codes;    ///< null: not wanted
  float* values;       ///< where the decoded values go, `x` if you like; null: not wanted
  ElementType type;    ///< to which decoded values are rounded
  const float* noise;  ///< null: to nearest
};

/// A copy of a job, member by member. As a whole it would be loaded in wide registers right after it was written in
/// narrow ones, which a processor can do only when the stores before have reached the cache.
template <class T>
TIGHTWIRE_INLINE T in_register(T value) {
  asm("" : "+r"(value));
  return value;
}
TIGHTWIRE_INLINE QuantizeJob in_registers(const QuantizeJob& job) {
  return {.x = in_register(job.x),
          .added = in_register(job.added),
          .noise = in_register(job.noise),
          .count = in_register(job.count),
          .part = in_register(job.part),
          .scales = in_register(job.scales),
          .codes = in_register(job.codes),
          .difference = in_register(job.difference),
          .values = in_register(job.values),
          .codes_past_cache = in_register(job.codes_past_cache),
          .difference_past_cache = in_register(job.difference_past_cache)};
}
TIGHTWIRE_INLINE DequantizeJob in_registers(const DequantizeJob& job) {
  return {.codes = in_register(job.codes),
          .count = in_register(job.count),
          .part = in_register(job.part),
          .scales = in_register(job.scales),
          .values = in_register(job.values),
          .past_cache = in_register(job.past_cache)};
}
TIGHTWIRE_INLINE Source in_registers(const Source& source) {
  return {
      .codes = in_register(source.codes), .scales = in_register(source.scales), .values = in_register(source.values)};
}
TIGHTWIRE_INLINE AccumulateJob in_registers(const AccumulateJob& job) {
  return {.sources = in_register(job.sources),
          .number = in_register(job.number),
          .first = in_register(job.first),
          .last = in_register(job.last),
          .divisor = job.divisor,
          .sum = in_register(job.sum),
          .count = in_register(job.count),
          .part = in_register(job.part)};
}
TIGHTWIRE_INLINE MomentsJob in_registers(const MomentsJob& job) {
  return {.x = in_register(job.x),
          .added = in_register(job.added),
          .elements = in_register(job.elements),
          .part = in_register(job.part),
          .stats = in_register(job.stats)};
}
TIGHTWIRE_INLINE StatisticsJob in_registers(const StatisticsJob& job) {
  return {.x = in_register(job.x),
          .added = in_register(job.added),
          .count = in_register(job.count),
          .part = in_register(job.part),
          .stats = in_register(job.stats)};
}

/// Of a codec's own statistics and scales.
inline constexpr std::size_t kMostStatBytes = 32;
inline constexpr std::size_t kMostScaleBytes = 32;

/// The loops of a codec for one instruction set.
struct Loops {
  void (*statistics)(const StatisticsJob&);
  void (*moments)(const MomentsJob&);  ///< null where the statistics are all
  bool (*scales)(const ScalesJob&);    ///< false if something is not finite
  void (*fit)(const FitJob&);          ///< null where scales do not depend on codes
  bool (*finite)(const void* stats, std::size_t part);
  void (*scales_of)(const ScalesOfJob&);
  void (*quantize)(const QuantizeJob&);
  /// Returns how many elements it took: it stops before a tile with something that is not finite. Null where the
  /// loops above must do.
  std::size_t (*encode_tiles)(const TilesJob&);
  std::uint64_t (*quantize_nonfinite)(const NonFiniteJob&);
  void (*dequantize)(const DequantizeJob&);
  void (*accumulate)(const AccumulateJob&);
  /// Null where a code is whole bytes.
  void (*pack)(const PackJob&);
  void (*unpack)(const UnpackJob&);
  std::size_t stat_bytes;
  std::size_t scale_bytes;
};

}  // namespace tightwire::host
