#pragma once
#include <tuple>

#include <tightwire/codec/dense.hpp>
#include <tightwire/codec/int4.hpp>
#include <tightwire/codec/int8.hpp>

/// Every codec the library ships. Adding a codec is one header above and one name here.
#define TIGHTWIRE_CODECS(with) with(Dense) with(Bf16) with(Fp16) with(Int8) with(Int4)

namespace tightwire {
namespace detail {

/// Grows name by name, since a macro list has no commas.
template <class... Codecs>
struct CodecNames {
  template <class Codec>
  using With = CodecNames<Codecs..., Codec>;
  using Tuple = std::tuple<Codecs...>;
};

}  // namespace detail

#define TIGHTWIRE_WITH(codec) ::With<codec>
using BuiltinCodecs = detail::CodecNames<> TIGHTWIRE_CODECS(TIGHTWIRE_WITH)::Tuple;
#undef TIGHTWIRE_WITH

}  // namespace tightwire
