#pragma once
#include <bit>
#include <concepts>
#include <cstdint>
#include <string>

#include <tightwire/codec/list.hpp>
#include <tightwire/codec/rotated.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/combine.hpp>
#include <tightwire/host/decode.hpp>
#include <tightwire/host/encode.hpp>
#include <tightwire/host/level.hpp>
#include <tightwire/host/loops_of.hpp>

namespace tightwire {
/// Any BlockCodec on the CPU.
///
/// Members are defined outside the class, so that `extern template` (core_codecs.hpp) keeps them out of files that
/// only use the built-in codecs.
template <BlockCodec C>
class HostCoder final : public Coder {
 public:
  /// Throws Error(invalid_argument) for a block that is not a multiple of 16, or of the codec's part, up to 4096.
  explicit HostCoder(C codec = {}, host::Level level = host::level());
  /// Throws Error(invalid_argument) for a size that is no power of two from 32 to 4096, or of which neither is a
  /// multiple of the other.
  template <std::same_as<Rotated<C>> R>  // so that {} is a codec
  explicit HostCoder(R rotated, host::Level level = host::level());

  std::string spec() const override;
  std::size_t block() const noexcept override;
  std::size_t wire_bytes(std::size_t count) const noexcept override;
  bool lossless(ElementType type) const noexcept override;
  bool stochastic(bool error_feedback) const noexcept override;
  std::string residual_basis() const override;
  std::uint64_t encode(ElementType type, const Encode& job) const override;
  NonFinite combine(ElementType type, const Combine& job) const override;
  void decode(ElementType type, const Decode& job) const override;

 private:
  C codec_;
  host::BoundCodec bound_;
  std::uint64_t rotation_seed_ = 0;
};

template <BlockCodec C>
HostCoder(Rotated<C>) -> HostCoder<C>;

template <BlockCodec C>
HostCoder<C>::HostCoder(C codec, host::Level level) : codec_(codec), bound_{{}, host::loops_of<C>(level), level, {}} {
  int unit = host::kSmallestBlock;
  if constexpr (detail::BlocksInParts<C>) {
    static_assert(C::part % host::kSmallestBlock == 0, "a part is a multiple of 16 elements");
    unit = C::part;
  }
  if (codec.block < unit || codec.block > host::kLargestBlock || codec.block % unit != 0)
    throw Error(Errc::invalid_argument, std::string(C::name) + ": block must be a multiple of " + std::to_string(unit) +
                                            " from " + std::to_string(unit) + " to 4096, got " +
                                            std::to_string(codec.block));
  bound_.form = host::form(codec);
}

template <BlockCodec C>
template <std::same_as<Rotated<C>> R>
HostCoder<C>::HostCoder(R rotated, host::Level level) : HostCoder(rotated.codec, level) {
  const auto size = static_cast<unsigned>(rotated.size);
  const auto fail = [&](const std::string& why) {
    return Error(Errc::invalid_argument, "hadamard: " + why + ", got " + std::to_string(rotated.size));
  };
  if (rotated.size < 0 || !std::has_single_bit(size) || size < host::Rotation::kSmallest ||
      size > host::Rotation::kLargest)
    throw fail("size must be a power of two from 32 to 4096");
  if (size % bound_.form.block != 0 && bound_.form.block % size != 0)
    throw fail("size must divide the block of " + spec() + " or be a multiple of it");
  bound_.rotation = host::Rotation(size, rotated.seed);
  rotation_seed_ = rotated.seed;
  bound_.form = host::form(codec_, size);
}

template <BlockCodec C>
std::string HostCoder<C>::residual_basis() const {
  if (!bound_.rotation) return {};
  return "hadamard:" + std::to_string(bound_.rotation.size()) +
         (rotation_seed_ != 0 ? ",seed=" + std::to_string(rotation_seed_) : "");
}

template <BlockCodec C>
std::string HostCoder<C>::spec() const {
  std::string spec = residual_basis();
  if (bound_.rotation) spec += "+";
  spec += std::string(C::name) + ":block=" + std::to_string(codec_.block);
  if constexpr (requires { codec_.round; })
    if (codec_.round != C{}.round) spec += ",round=" + std::string(to_string(codec_.round));
  return spec;
}

template <BlockCodec C>
std::size_t HostCoder<C>::block() const noexcept {
  return bound_.form.grain;
}

template <BlockCodec C>
std::size_t HostCoder<C>::wire_bytes(std::size_t count) const noexcept {
  return host::layout(bound_.form, count).bytes;
}

template <BlockCodec C>
bool HostCoder<C>::lossless(ElementType type) const noexcept {
  return C::lossless(type) && !bound_.rotation;
}

template <BlockCodec C>
bool HostCoder<C>::stochastic(bool error_feedback) const noexcept {
  if constexpr (requires { codec_.round; })
    return codec_.round == Rounding::stochastic ||
           (codec_.round == Rounding::automatic && !error_feedback && C::bits <= 4);
  else
    return false;
}

template <BlockCodec C>
std::uint64_t HostCoder<C>::encode(ElementType type, const Encode& job) const {
  return host::encode(bound_, type, job);
}

template <BlockCodec C>
Coder::NonFinite HostCoder<C>::combine(ElementType type, const Combine& job) const {
  return host::Combine(bound_, type, lossless(type), job).run();
}

template <BlockCodec C>
void HostCoder<C>::decode(ElementType type, const Decode& job) const {
  host::decode(bound_, type, job);
}

}  // namespace tightwire
