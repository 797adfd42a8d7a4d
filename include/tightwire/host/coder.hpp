#pragma once
#include <concepts>
#include <cstdint>
#include <string>

#include <tightwire/codec/description.hpp>
#include <tightwire/codec/list.hpp>
#include <tightwire/codec/rotated.hpp>
#include <tightwire/coder.hpp>
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
  bool keeps_bf16() const noexcept override { return true; }
  std::string residual_basis() const override;
  std::uint64_t encode(ElementType type, const Encode& job) const override;
  NonFinite combine(ElementType type, const Combine& job) const override;
  void decode(ElementType type, const Decode& job) const override;

 private:
  Rotated<C> rotated() const { return {static_cast<int>(bound_.rotation.size()), codec_, rotation_seed_}; }

  C codec_;
  host::BoundCodec bound_;
  std::uint64_t rotation_seed_ = 0;
};

template <BlockCodec C>
HostCoder(Rotated<C>) -> HostCoder<C>;

template <BlockCodec C>
HostCoder<C>::HostCoder(C codec, host::Level level) : codec_(codec), bound_{{}, host::loops_of<C>(level), level, {}} {
  detail::check_block(codec);
  bound_.form = host::form(codec);
}

template <BlockCodec C>
template <std::same_as<Rotated<C>> R>
HostCoder<C>::HostCoder(R rotated, host::Level level) : HostCoder(rotated.codec, level) {
  detail::check_rotation(rotated);
  const auto size = static_cast<std::size_t>(rotated.size);
  bound_.rotation = host::Rotation(size, rotated.seed);
  rotation_seed_ = rotated.seed;
  bound_.form = host::form(codec_, size);
}

template <BlockCodec C>
std::string HostCoder<C>::residual_basis() const {
  return detail::rotation_spec_of(rotated());
}

template <BlockCodec C>
std::string HostCoder<C>::spec() const {
  return detail::spec_of(rotated());
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
  return detail::is_stochastic(codec_, error_feedback);
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
