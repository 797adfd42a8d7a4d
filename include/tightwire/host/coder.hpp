#pragma once
#include <string>

#include <tightwire/codec/list.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/level.hpp>
#include <tightwire/host/loops.hpp>

namespace tightwire {
namespace host {

/// One verb of one codec compiled for three instruction sets. Function templates with a target attribute: one source,
/// usable from headers alone, no second definition under other compiler flags.
template <class Verb, class... Args>
auto run_baseline(Args... args) {
  return Verb::run(args...);
}
template <class Verb, class... Args>
TIGHTWIRE_TARGET_AVX2 auto run_avx2(Args... args) {
  return Verb::run(args...);
}
template <class Verb, class... Args>
TIGHTWIRE_TARGET_AVX512 auto run_avx512(Args... args) {
  return Verb::run(args...);
}
template <class Verb, class... Args>
auto run(Level level, Args... args) {
  switch (level) {
    case Level::avx512: return run_avx512<Verb, Args...>(args...);
    case Level::avx2: return run_avx2<Verb, Args...>(args...);
    default: return run_baseline<Verb, Args...>(args...);
  }
}

template <class L, class C>
struct EncodeVerb {
  TIGHTWIRE_INLINE static std::uint64_t run(const C* codec, const Coder::Encode* job) { return L::encode(*codec, *job); }
};
template <class L, class C>
struct CombineVerb {
  TIGHTWIRE_INLINE static Coder::NonFinite run(const C* codec, const Coder::Combine* job) {
    return L::combine(*codec, *job);
  }
};
template <class L, class C>
struct DecodeVerb {
  TIGHTWIRE_INLINE static void run(const C* codec, const std::byte* wire, std::size_t count, void* out) {
    L::decode(*codec, wire, count, static_cast<typename L::Storage*>(out));
  }
};

}  // namespace host

/// Any BlockCodec on the CPU.
///
/// Members are defined outside the class, so that `extern template` (host/builtin.hpp) keeps them out of files that only use
/// the built-in codecs.
template <BlockCodec C>
class HostCoder final : public Coder {
 public:
  /// Throws Error(invalid_argument) for a block that is not a multiple of 16 from 16 to 4096.
  explicit HostCoder(C codec = {}, host::Level level = host::level());

  std::string spec() const override;
  std::size_t block() const noexcept override;
  std::size_t wire_bytes(std::size_t count) const noexcept override;
  bool lossless(ElementType type) const noexcept override;
  std::uint64_t encode(ElementType type, const Encode& job) const override;
  NonFinite combine(ElementType type, const Combine& job) const override;
  void decode(ElementType type, const std::byte* wire, std::size_t count, void* out) const override;

 private:
  template <class F>
  auto with_loops(ElementType type, F f) const;

  C codec_;
  host::Level level_;
};

template <BlockCodec C>
HostCoder<C>::HostCoder(C codec, host::Level level) : codec_(codec), level_(level) {
  if (codec.block < host::kSmallestTile || codec.block > host::kMaxBlock || codec.block % host::kSmallestTile != 0)
    throw Error(Errc::invalid_argument, std::string(C::name) + ": block must be a multiple of 16 from 16 to 4096, got " +
                                            std::to_string(codec.block));
}

template <BlockCodec C>
std::string HostCoder<C>::spec() const {
  return std::string(C::name) + ":block=" + std::to_string(codec_.block);
}

template <BlockCodec C>
std::size_t HostCoder<C>::block() const noexcept {
  return static_cast<std::size_t>(codec_.block);
}

template <BlockCodec C>
std::size_t HostCoder<C>::wire_bytes(std::size_t count) const noexcept {
  return host::layout(codec_, count).bytes;
}

template <BlockCodec C>
bool HostCoder<C>::lossless(ElementType type) const noexcept {
  return C::lossless(type);
}

/// The loops for an element type, in tiles as large as the block allows.
template <BlockCodec C>
template <class F>
auto HostCoder<C>::with_loops(ElementType type, F f) const {
  const bool wide = codec_.block % 64 == 0;
  switch (type) {
    case ElementType::bf16:
      return wide ? f(host::Loops<C, ElementType::bf16, 64>{}) : f(host::Loops<C, ElementType::bf16, 16>{});
    case ElementType::f16:
      return wide ? f(host::Loops<C, ElementType::f16, 64>{}) : f(host::Loops<C, ElementType::f16, 16>{});
    default: return wide ? f(host::Loops<C, ElementType::f32, 64>{}) : f(host::Loops<C, ElementType::f32, 16>{});
  }
}

template <BlockCodec C>
std::uint64_t HostCoder<C>::encode(ElementType type, const Encode& job) const {
  return with_loops(type, [&]<class L>(L) { return host::run<host::EncodeVerb<L, C>>(level_, &codec_, &job); });
}

template <BlockCodec C>
Coder::NonFinite HostCoder<C>::combine(ElementType type, const Combine& job) const {
  return with_loops(type, [&]<class L>(L) { return host::run<host::CombineVerb<L, C>>(level_, &codec_, &job); });
}

template <BlockCodec C>
void HostCoder<C>::decode(ElementType type, const std::byte* wire, std::size_t count, void* out) const {
  with_loops(type, [&]<class L>(L) { host::run<host::DecodeVerb<L, C>>(level_, &codec_, wire, count, out); });
}

}  // namespace tightwire
