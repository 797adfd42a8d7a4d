#pragma once
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tightwire/builtin_codecs.hpp>
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

/// The names `parse_codec` knows, with commas between.
inline std::string codec_names() {
  std::string names = "exact";
  for (const BuiltinCodec& codec : builtin_codecs()) names += ", " + std::string(codec.name);
  return names;
}

/// A built-in codec from text: "exact", "int8", "int4:block=32,round=stochastic". Throws Error(invalid_argument) that
/// names the known ones.
inline Codec parse_codec(std::string_view text) {
  const auto next_of = [](std::string_view& rest, char separator) {
    const std::size_t end = rest.find(separator);
    const std::string_view first = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    return first;
  };
  const auto fail = [&](const std::string& why) -> Error {
    return Error(Errc::invalid_argument, "codec \"" + std::string(text) + "\": " + why);
  };
  std::string_view options = text;
  const std::string_view name = next_of(options, ':');
  if (name == "exact" && options.empty()) return Codec{};
  const BuiltinCodec* found = nullptr;
  for (const BuiltinCodec& codec : builtin_codecs())
    if (codec.name == name) found = &codec;
  if (found == nullptr) throw fail("not known; known are " + codec_names());
  CodecSettings settings;
  while (!options.empty()) {
    const std::string_view option = next_of(options, ',');
    std::string_view value = option;
    const std::string_view key = next_of(value, '=');
    if (key == "round") {
      for (const Rounding rounding : {Rounding::automatic, Rounding::nearest, Rounding::stochastic})
        if (value == to_string(rounding)) settings.round = rounding;
      if (!settings.round) throw fail("\"" + std::string(option) + "\": known are automatic, nearest, stochastic");
      continue;
    }
    if (key != "block")
      throw fail("unknown option \"" + std::string(option) +
                 "\"; known: block=<elements>, round=automatic|nearest|stochastic");
    int block = 0;
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), block);
    if (parsed.ec != std::errc{} || parsed.ptr != value.data() + value.size())
      throw fail("\"" + std::string(option) + "\" is not a number of elements");
    settings.block = block;
  }
  return Codec(found->make(settings, host::level()));
}

}  // namespace tightwire
