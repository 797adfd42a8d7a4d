// The loops of these built-in codecs, compiled once.
#include <tightwire/builtin_codecs.hpp>

namespace tightwire {

#define TIGHTWIRE_INSTANTIATE(codec) template class HostCoder<codec>;
TIGHTWIRE_AFFINE_AND_FLOAT_CODECS(TIGHTWIRE_INSTANTIATE)
#undef TIGHTWIRE_INSTANTIATE

}  // namespace tightwire
