#pragma once
// Says that the loops of the built-in codecs are in tightwire::core. A file that includes this must link it.
#include <tightwire/builtin_codecs.hpp>

namespace tightwire {

#define TIGHTWIRE_EXTERN(codec) extern template class HostCoder<codec>;
TIGHTWIRE_CODECS(TIGHTWIRE_EXTERN)
#undef TIGHTWIRE_EXTERN
extern template std::span<const BuiltinCodec> builtin_codecs<BuiltinCodecs>();

}  // namespace tightwire
