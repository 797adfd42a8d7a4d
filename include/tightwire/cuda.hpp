#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tightwire/coder.hpp>

/// What CUDA's cudaStream_t points to.
struct CUstream_st;

namespace tightwire {

class Codec;

/// Codecs on NVIDIA GPUs: component tightwire::cuda. No header of CUDA's is needed to use it. Encoded bytes, residuals
/// and decoded elements are those of the host, bit for bit.
namespace cuda {

using Stream = CUstream_st*;

/// A codec on a device; see tightwire::Coder, whose jobs it takes. Pointers in a job, and to counters, are to memory
/// that the current device can reach; `noise` and the list of `sources` are read before a call returns, and hints are
/// ignored.
///
/// Calls put one kernel on a stream and return: they allocate nothing and wait for nothing. They throw Error(device)
/// with the call of CUDA's that failed. Buffers may be unaligned; those on 16 bytes are moved 16 bytes at a time.
class Coder {
 public:
  /// Contributions that one combine may have.
  static constexpr std::size_t kMostSources = 128;

  virtual ~Coder() = default;

  virtual std::string spec() const = 0;
  virtual std::size_t block() const noexcept = 0;
  virtual std::size_t wire_bytes(std::size_t count) const noexcept = 0;
  virtual bool lossless(ElementType type) const noexcept = 0;
  virtual bool stochastic(bool error_feedback) const noexcept = 0;

  /// Loads its kernels into the current device. CUDA does so at the first launch otherwise, and may wait there for
  /// what is under way, which may wait for other ranks. A Session does it in `seal`.
  virtual void load() const {}

  /// data + residual -> wire. The number of non-finite elements is added to `*nonfinite`, unless that is null.
  virtual void encode(ElementType type, const tightwire::Coder::Encode& job, std::uint64_t* nonfinite,
                      Stream stream) const = 0;
  /// The sum of all contributions -> wire and out, with both residuals. `met` is added to, unless it is null. Throws
  /// Error(unsupported) for more than kMostSources.
  virtual void combine(ElementType type, const tightwire::Coder::Combine& job, tightwire::Coder::NonFinite* met,
                       Stream stream) const = 0;
  /// wire -> out.
  virtual void decode(ElementType type, const tightwire::Coder::Decode& job, Stream stream) const = 0;
};

/// A built-in codec from text, as `parse_codec` takes it. Throws Error(invalid_argument) for what that refuses and for
/// "exact", which depends on a type, Error(unsupported) for codecs that are not of blocks.
std::shared_ptr<const Coder> make_coder(std::string_view spec);
/// The same codec on a device. Throws Error(unsupported) for one that is not built in: include cuda/coder.cuh.
std::shared_ptr<const Coder> make_coder(const Codec& codec, ElementType type);

/// The devices of this machine, and why there is none.
struct Devices {
  int count = 0;
  std::string note;  ///< names of devices, or what CUDA said
};
/// Never throws: a machine without a driver has no devices.
Devices devices();

}  // namespace cuda
}  // namespace tightwire
