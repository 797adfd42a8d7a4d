#pragma once
// Says that the loops of the built-in codecs, of top-k and of PowerSGD are in tightwire::core. A file that includes
// this must link it.
#include <tightwire/builtin_codecs.hpp>
#include <tightwire/kernels.hpp>

namespace tightwire {

#define TIGHTWIRE_EXTERN(codec) extern template class HostCoder<codec>;
TIGHTWIRE_CODECS(TIGHTWIRE_EXTERN)
#undef TIGHTWIRE_EXTERN
extern template std::span<const BuiltinCodec> builtin_codecs<BuiltinCodecs>();

namespace host {
#define TIGHTWIRE_EXTERN(...) TIGHTWIRE_KERNEL(extern template, __VA_ARGS__)
TIGHTWIRE_KERNELS(TIGHTWIRE_EXTERN)
#undef TIGHTWIRE_EXTERN
}  // namespace host

}  // namespace tightwire
