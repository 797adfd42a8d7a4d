#pragma once
#include <tuple>

#include <tightwire/codec/dense.hpp>
#include <tightwire/codec/int4.hpp>
#include <tightwire/codec/int8.hpp>

namespace tightwire {

/// Every codec the library ships. Adding a codec is one header above and one name here.
using BuiltinCodecs = std::tuple<Dense, Bf16, Fp16, Int8, Int4>;

}  // namespace tightwire
