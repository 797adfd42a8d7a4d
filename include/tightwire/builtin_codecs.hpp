#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include <tightwire/codec/list.hpp>
#include <tightwire/codec/settings.hpp>
#include <tightwire/coder.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/coder.hpp>

namespace tightwire {

/// A codec of the list without its type.
struct BuiltinCodec {
  std::string_view name;
  double accuracy;  ///< promised relative error (root of NMSE) on Gaussian data
  /// Throws Error(invalid_argument) for settings that the codec does not take.
  std::shared_ptr<const Coder> (*make)(const CodecSettings&, host::Level);
};

namespace detail {

template <BlockCodec C>
std::shared_ptr<const Coder> make_builtin(const CodecSettings& settings, host::Level level) {
  const C codec = with_settings<C>(settings);
  if (settings.hadamard)
    return std::make_shared<HostCoder<C>>(Rotated<C>{*settings.hadamard, codec, settings.signs.value_or(0)}, level);
  return std::make_shared<HostCoder<C>>(codec, level);
}
template <class Codecs>
struct BuiltinTable;
template <class... C>
struct BuiltinTable<std::tuple<C...>> {
  static constexpr BuiltinCodec codecs[] = {{C::name, static_cast<double>(C::accuracy), &make_builtin<C>}...};
};

}  // namespace detail

/// Every codec of `codec/list.hpp`. A template, so that a file which links tightwire::core need not compile all of them
/// (core_codecs.hpp).
template <class Codecs = BuiltinCodecs>
std::span<const BuiltinCodec> builtin_codecs() {
  return detail::BuiltinTable<Codecs>::codecs;
}

}  // namespace tightwire
