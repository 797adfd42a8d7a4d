#pragma once
#include <memory>
#include <string>
#include <utility>

#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/coder.hpp>

namespace tightwire {

struct TopK;
struct RandomK;
struct SparseSettings;
struct PowerSgd;
struct LowRankSettings;

/// Lets a Session choose for its ranks, links and parameters when it is sealed: exact unless another codec of blocks is
/// faster by a tenth (automatic_codec.hpp). `Session::description` tells which it took.
struct Auto {};

/// A codec chosen at run time, made from any BlockCodec value, ours or the user's (`Codec c = Int8{.block = 128}`), or
/// from TopK or RandomK (sparse/settings.hpp) or PowerSgd (low_rank/settings.hpp). Cheap to copy.
class Codec {
 public:
  /// Exact: the buffer's own element type on the wire.
  Codec() = default;
  template <BlockCodec C>
  Codec(C codec) : coder_(std::make_shared<HostCoder<C>>(codec)) {}
  template <BlockCodec C>
  Codec(Rotated<C> rotated) : coder_(std::make_shared<HostCoder<C>>(rotated)) {}
  explicit Codec(std::shared_ptr<const Coder> coder) : coder_(std::move(coder)) {}
  /// Throws Error(invalid_argument) for a setting that makes no sense.
  Codec(const TopK& top_k);
  Codec(const RandomK& random_k);
  Codec(const PowerSgd& power_sgd);
  Codec(Auto) : automatic_(true) {}

  /// Whether it is for a Session to choose. It has no coder until then.
  bool automatic() const noexcept { return automatic_; }

  std::string spec() const;

  /// Null unless only some elements are sent.
  const SparseSettings* sparse() const noexcept { return sparse_.get(); }
  /// Null unless matrices are sent as products of factors.
  const LowRankSettings* low_rank() const noexcept { return low_rank_.get(); }

  /// The coder for buffers of a type. Throws Error(unsupported) where only some elements are sent, which is no matter
  /// of blocks, and of Auto.
  std::shared_ptr<const Coder> coder(ElementType type) const {
    if (automatic_)
      throw Error(Errc::unsupported,
                  "auto is chosen for a whole Session, by SessionOptions::codec; elsewhere name one");
    if (sparse_ || low_rank_) throw Error(Errc::unsupported, spec() + " is not a codec of blocks");
    if (coder_) return coder_;
    switch (type) {
      case ElementType::bf16: return std::make_shared<HostCoder<Bf16>>();
      case ElementType::f16: return std::make_shared<HostCoder<Fp16>>();
      default: return std::make_shared<HostCoder<Dense>>();
    }
  }

 private:
  std::shared_ptr<const Coder> coder_;
  std::shared_ptr<const SparseSettings> sparse_;
  std::shared_ptr<const LowRankSettings> low_rank_;
  bool automatic_ = false;
};

}  // namespace tightwire
