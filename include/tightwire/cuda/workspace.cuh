#pragma once
#include <cstddef>
#include <cstdint>

#include <tightwire/codec/concept.hpp>
#include <tightwire/cuda/job.cuh>
#include <tightwire/noise.hpp>

namespace tightwire::cuda::detail {

/// Takes arrays from the front of shared memory, each on 16 bytes.
struct Carver {
  std::byte* base;
  std::size_t used = 0;
  template <class T>
  TIGHTWIRE_HD T* take(std::size_t count) {
    std::byte* const at = base + used;
    used += (count * sizeof(T) + 15) / 16 * 16;
    return reinterpret_cast<T*>(at);
  }
};

/// What the threads of a block share while they work on a tile.
template <BlockCodec C>
struct Workspace {
  using Stat = typename C::Stat;

  float* x;                   ///< elements, then what they decode to
  float* differences;         ///< what the decoded elements miss
  Stat* stats;                ///< of the parts
  typename C::Scale* scales;  ///< of the parts
  SharedOf<C>* shared;        ///< of the blocks, where they consist of parts
  unsigned* nonfinite_input;  ///< of the parts: not 0 if an element is not finite
  unsigned* counters;         ///< see Count
  std::byte* groups;          ///< partial statistics
  std::uint16_t* noise;       ///< random bits
  std::byte* params;          ///< as they go on the wire
  std::byte* codes;           ///< as they go on the wire

  TIGHTWIRE_HD Workspace(const Shape& shape, Carver& carver) {
    const std::size_t parts = (shape.tile + shape.part - 1) / shape.part;
    const std::size_t blocks = (shape.tile + shape.block - 1) / shape.block;
    constexpr std::size_t kGroupBytes = sizeof(Stat) > 8 ? sizeof(Stat) : 8;
    x = carver.take<float>(shape.tile);
    differences = carver.take<float>(shape.tile);
    stats = carver.take<Stat>(parts);
    scales = carver.take<typename C::Scale>(parts);
    shared = carver.take<SharedOf<C>>(blocks);
    nonfinite_input = carver.take<unsigned>(parts);
    counters = carver.take<unsigned>(4);
    groups = carver.take<std::byte>(kGroupBytes * ((shape.tile + 15) / 16));
    params = carver.take<std::byte>(blocks * host::kSharedBytes<C> + parts * host::kParamBytes<C>);
    codes = carver.take<std::byte>((static_cast<std::size_t>(shape.tile) * C::bits + 7) / 8 + 8);
    noise = carver.take<std::uint16_t>(0);
    noise_at = carver.used;
  }
  std::size_t noise_at;

  /// Bytes of shared memory in all. Noise comes last, and is there only where elements are rounded with it.
  static std::size_t bytes(const Shape& shape, bool noisy) {
    alignas(16) std::byte none[16];
    Carver carver{none};
    const Workspace work(shape, carver);
    return work.noise_at + (noisy ? (shape.tile + 2 * tightwire::detail::kNoiseGroup) * sizeof(std::uint16_t) : 0);
  }
};

/// Places of Workspace::counters.
enum Count : unsigned { kInCodes, kInValues, kPartsNotFinite };

}  // namespace tightwire::cuda::detail
