#pragma once
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/any_codec.hpp>
#include <tightwire/builtin_codecs.hpp>
#include <tightwire/error.hpp>
#include <tightwire/low_rank/settings.hpp>
#include <tightwire/sparse/settings.hpp>

namespace tightwire {

inline std::string Codec::spec() const {
  if (automatic_) return "auto";
  if (sparse_) return sparse_->spec();
  if (low_rank_) return low_rank_->spec();
  return coder_ ? coder_->spec() : "exact";
}

/// The names `parse_codec` knows, with commas between.
inline std::string codec_names() {
  std::string names = "exact";
  for (const BuiltinCodec& codec : builtin_codecs()) names += ", " + std::string(codec.name);
  return names + ", topk, randomk, powersgd, auto";
}

namespace detail {

/// Reads a specification of a codec, option by option.
class CodecReader {
 public:
  explicit CodecReader(std::string_view text) : text_(text) {}

  Codec read() {
    if (text_ == "auto") return Auto{};
    if (text_.starts_with("hier(")) throw fail("is for a whole Session, where its first codec is named");
    if (const std::string_view first = text_.substr(0, text_.find_first_of(":+"));
        first == "topk" || first == "randomk")
      return read_sparse();
    if (text_.substr(0, text_.find_first_of(":+")) == "powersgd") return read_power_sgd();
    const auto [name, settings] = read_any();
    if (name == "exact") return Codec{};
    const BuiltinCodec* found = nullptr;
    for (const BuiltinCodec& codec : builtin_codecs())
      if (codec.name == name) found = &codec;
    try {
      return Codec(found->make(settings, host::level()));
    } catch (const Error& error) {
      throw fail(error.what());
    }
  }

  /// Name and settings of a built-in codec of blocks, whatever device it is to be made for.
  struct BlockCodecText {
    std::string name;
    CodecSettings settings;
  };
  BlockCodecText read_block_codec() {
    if (const std::string_view first = text_.substr(0, text_.find_first_of(":+"));
        first == "topk" || first == "randomk" || first == "powersgd")
      throw Error(Errc::unsupported, "codec \"" + std::string(text_) + "\" is not a codec of blocks");
    BlockCodecText text = read_any();
    if (text.name == "exact") throw fail("depends on the type of a buffer; name it: dense, bf16 or fp16");
    return text;
  }

 private:
  static std::string_view take(std::string_view& rest, char separator) {
    const std::size_t end = rest.find(separator);
    const std::string_view first = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    return first;
  }
  Error fail(const std::string& why) const {
    return Error(Errc::invalid_argument, "codec \"" + std::string(text_) + "\": " + why);
  }
  template <class Number>
  Number number(std::string_view option, std::string_view value, const char* what) const {
    Number number{};
    const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
    if (parsed.ec != std::errc{} || parsed.ptr != value.data() + value.size())
      throw fail("\"" + std::string(option) + "\" is not a number" + what);
    return number;
  }
  /// "topk:ratio=0.01,sampled+int8": options, then the codec of the values.
  Codec read_sparse() {
    std::string_view rest = text_;
    refuse_open_end(rest);
    std::string_view options = take(rest, '+');
    refuse_open_end(options);
    const bool random = take(options, ':') == "randomk";
    TopK top_k;
    if (!rest.empty()) top_k.values = CodecReader(rest).read();
    while (!options.empty()) read_sparse_option(take(options, ','), random, top_k);
    try {
      if (!random) return top_k;
      return RandomK{.ratio = top_k.ratio, .values = top_k.values, .without_feedback = top_k.without_feedback};
    } catch (const Error& error) {
      throw fail(error.what());
    }
  }
  void read_sparse_option(std::string_view option, bool random, TopK& top_k) {
    std::string_view value = option;
    const std::string_view key = take(value, '=');
    refuse_twice(option, key);
    if (key == "ratio") {
      top_k.ratio = number<double>(option, value, "");
    } else if (!random && key == "warm-up") {
      top_k.warm_up_steps = number<std::uint32_t>(option, value, " of steps");
    } else if (option == "without-feedback") {
      top_k.without_feedback = true;
    } else if (!random && option == "per-bucket") {
      top_k.per_bucket = true;
    } else if (!random && option == "sampled") {
      top_k.sampled = true;
    } else if (!random && option == "union") {
      top_k.reselect = false;
    } else {
      throw fail("unknown option \"" + std::string(option) + "\"; known: ratio=<0..1>, " +
                 (random ? "" : "per-bucket, sampled, union, warm-up=<steps>, ") + "without-feedback");
    }
  }
  /// "powersgd:rank=4,start=1000+int8": options, then the codec of the factors.
  Codec read_power_sgd() {
    std::string_view rest = text_;
    refuse_open_end(rest);
    std::string_view options = take(rest, '+');
    refuse_open_end(options);
    take(options, ':');
    PowerSgd power_sgd;
    if (!rest.empty()) power_sgd.factors = CodecReader(rest).read();
    while (!options.empty()) read_power_sgd_option(take(options, ','), power_sgd);
    try {
      return power_sgd;
    } catch (const Error& error) {
      throw fail(error.what());
    }
  }
  void read_power_sgd_option(std::string_view option, PowerSgd& power_sgd) {
    std::string_view value = option;
    const std::string_view key = take(value, '=');
    if (key == "rank" && value.find('@') != std::string_view::npos) {
      const std::string_view rank = take(value, '@');
      power_sgd.changes.push_back({number<std::uint64_t>(option, value, " of a step behind the @"),
                                   number<std::size_t>(option, rank, " of columns before the @")});
      return;
    }
    refuse_twice(option, key);
    if (key == "rank") {
      const std::string_view least = take(value, '-');
      power_sgd.rank = number<std::size_t>(option, least, " of columns");
      if (!value.empty()) power_sgd.most_rank = number<std::size_t>(option, value, " of columns");
    } else if (key == "error") {
      power_sgd.error = number<double>(option, value, "");
    } else if (key == "start") {
      power_sgd.start_step = number<std::uint64_t>(option, value, " of a step");
    } else if (option == "one-factor") {
      power_sgd.both_factors = false;
    } else if (option == "without-feedback") {
      power_sgd.without_feedback = true;
    } else {
      throw fail("unknown option \"" + std::string(option) +
                 "\"; known: rank=<columns>, rank=<columns>@<step>, rank=<least>-<most> with error=<0..1>, "
                 "start=<step>, one-factor, without-feedback");
    }
  }
  void refuse_twice(std::string_view option, std::string_view key) {
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end())
      throw fail("\"" + std::string(option) + "\": " + std::string(key) + " is given twice");
    seen_.push_back(key);
  }
  void refuse_open_end(std::string_view text) const {
    if (text.ends_with(':') || text.ends_with(',') || text.ends_with('+'))
      throw fail("nothing comes after the \"" + std::string(text.substr(text.size() - 1)) + "\"");
  }
  /// Of a codec of blocks, or "exact".
  BlockCodecText read_any() {
    std::string_view rest = text_;
    refuse_open_end(rest);
    if (rest.find('+') != std::string_view::npos || rest.substr(0, rest.find(':')) == "hadamard") {
      const std::string_view rotation = take(rest, '+');
      if (rest.empty()) throw fail("a rotation needs a codec behind it: \"hadamard:32+int4\"");
      read_rotation(rotation);
    }
    const std::string name(take(rest, ':'));
    if (name == "exact") {
      if (settings_.hadamard) throw fail("exact elements are not rotated; \"dense\" can be");
      if (!rest.empty()) throw fail("exact takes no options");
      return {name, settings_};
    }
    const std::span<const BuiltinCodec> known = builtin_codecs();
    if (std::none_of(known.begin(), known.end(), [&](const BuiltinCodec& codec) { return codec.name == name; }))
      throw fail("not known; known are " + codec_names());
    while (!rest.empty()) read_option(take(rest, ','));
    return {name, settings_};
  }
  void read_rotation(std::string_view rest) {
    refuse_open_end(rest);
    const std::string_view name = take(rest, ':');
    if (name != "hadamard")
      throw fail("\"" + std::string(name) + "\" before a + is not known; known is hadamard:<size>");
    const std::string_view size = take(rest, ',');
    settings_.hadamard = size.empty() ? 32 : number<int>(size, size, " of elements");
    if (rest.empty()) return;
    const std::string_view option = rest;
    if (take(rest, '=') != "seed") throw fail("unknown option \"" + std::string(option) + "\"; known: seed=<number>");
    settings_.signs = number<std::uint64_t>(option, rest, "");
  }
  void read_option(std::string_view option) {
    std::string_view value = option;
    const std::string_view key = take(value, '=');
    if ((key == "block" && settings_.block) || (key == "round" && settings_.round))
      throw fail("\"" + std::string(option) + "\": " + std::string(key) + " is given twice");
    if (key == "block") {
      settings_.block = number<int>(option, value, " of elements");
    } else if (key == "round") {
      for (const Rounding rounding : {Rounding::automatic, Rounding::nearest, Rounding::stochastic})
        if (value == to_string(rounding)) settings_.round = rounding;
      if (!settings_.round) throw fail("\"" + std::string(option) + "\": known are automatic, nearest, stochastic");
    } else {
      throw fail("unknown option \"" + std::string(option) +
                 "\"; known: block=<elements>, round=automatic|nearest|stochastic");
    }
  }

  std::string_view text_;
  CodecSettings settings_;
  std::vector<std::string_view> seen_;
};

}  // namespace detail

/// A built-in codec from text: "exact", "int8", "int4:block=32,round=stochastic", "hadamard:32+int4:block=32" (rotated
/// in blocks of 32 elements; also "hadamard:32,seed=7+int4"), "topk:ratio=0.01" (values in fp32; options
/// warm-up=<steps>, per-bucket, sampled, union, without-feedback), "topk:ratio=0.01+int8" (values in int8),
/// "randomk:ratio=0.01+bf16", "auto" (for a Session to choose). Throws Error(invalid_argument) that names what is
/// known.
inline Codec parse_codec(std::string_view text) { return detail::CodecReader(text).read(); }

}  // namespace tightwire
