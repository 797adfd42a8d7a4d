#pragma once
#include <cstdint>

#include <tightwire/codec/concept.hpp>

namespace tightwire {

/// A quantizer behind a randomized Hadamard transform of `size` elements, a power of two from 32 to 4096: every element
/// of the rotated block is a mixture of all, nearly Gaussian whatever the elements were like, so that outliers cost no
/// accuracy (DRIVE, Vargaftik et al. 2021; 32 with 4 bits as in SDP4Bit, Jia et al. 2024). Contributions are rotated
/// once and summed as they are; only the result is rotated back. Residuals are of rotated elements. One of `size` and
/// the codec's block must be a multiple of the other. A NaN or infinity reaches all elements of its rotated block.
template <BlockCodec C>
struct Rotated {
  int size = 32;
  C codec = {};
  std::uint64_t seed = 0;  ///< of the signs
};

template <BlockCodec C>
Rotated(int, C, std::uint64_t) -> Rotated<C>;

}  // namespace tightwire
