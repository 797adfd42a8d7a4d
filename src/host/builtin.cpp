// The loops of the built-in codecs, compiled once.
#include <tightwire/builtin_codecs.hpp>

namespace tightwire {

#define TIGHTWIRE_INSTANTIATE(codec) template class HostCoder<codec>;
TIGHTWIRE_CODECS(TIGHTWIRE_INSTANTIATE)
#undef TIGHTWIRE_INSTANTIATE
template std::span<const BuiltinCodec> builtin_codecs<BuiltinCodecs>();

}  // namespace tightwire
