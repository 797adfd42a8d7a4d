#pragma once
#include <array>
#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <tightwire/codec/list.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/coder.hpp>

namespace tightwire {

/// A codec chosen at run time, made from any BlockCodec value, ours or the user's: `Codec c = Int8{.block = 128}`.
/// Cheap to copy.
class Codec {
 public:
  /// Exact: the buffer's own element type on the wire.
  Codec() = default;
  template <BlockCodec C>
  Codec(C codec) : coder_(std::make_shared<HostCoder<C>>(codec)) {}
  explicit Codec(std::shared_ptr<const Coder> coder) : coder_(std::move(coder)) {}

  std::string spec() const { return coder_ ? coder_->spec() : "exact"; }

  /// The coder for buffers of a type.
  std::shared_ptr<const Coder> coder(ElementType type) const {
    if (coder_) return coder_;
    switch (type) {
      case ElementType::bf16: return std::make_shared<HostCoder<Bf16>>();
      case ElementType::f16: return std::make_shared<HostCoder<Fp16>>();
      default: return std::make_shared<HostCoder<Dense>>();
    }
  }

 private:
  std::shared_ptr<const Coder> coder_;
};

inline std::string codec_names() {
  std::string names = "exact";
  std::apply([&](auto... codec) { ((names += ", " + std::string(decltype(codec)::name)), ...); }, BuiltinCodecs{});
  return names;
}

/// A built-in codec from text: "exact", "int8", "int4:block=32". Throws Error(invalid_argument) that names the known
/// ones.
inline Codec parse_codec(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string_view options = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  const auto fail = [&](const std::string& why) -> Error {
    return Error(Errc::invalid_argument, "codec \"" + std::string(text) + "\": " + why);
  };
  if (name == "exact" && options.empty()) return Codec{};
  Codec found;
  bool known = false;
  const auto match = [&]<BlockCodec C>(C codec) {
    if (known || name != C::name) return;
    known = true;
    while (!options.empty()) {
      const std::size_t comma = options.find(',');
      const std::string_view option = options.substr(0, comma);
      options = comma == std::string_view::npos ? std::string_view{} : options.substr(comma + 1);
      constexpr std::string_view kBlock = "block=";
      if (!option.starts_with(kBlock))
        throw fail("unknown option \"" + std::string(option) + "\"; known: block=<elements>");
      const char* end = option.data() + option.size();
      const auto parsed = std::from_chars(option.data() + kBlock.size(), end, codec.block);
      if (parsed.ec != std::errc{} || parsed.ptr != end)
        throw fail("\"" + std::string(option) + "\" is not a number of elements");
    }
    found = codec;
  };
  std::apply([&](auto... codec) { (match(codec), ...); }, BuiltinCodecs{});
  if (!known) throw fail("not known; known are " + codec_names());
  return found;
}

}  // namespace tightwire
