// The loops of the built-in codecs, compiled once.
#include <tightwire/host/coder.hpp>

namespace tightwire {

#define TIGHTWIRE_INSTANTIATE(codec) template class HostCoder<codec>;
TIGHTWIRE_CODECS(TIGHTWIRE_INSTANTIATE)
#undef TIGHTWIRE_INSTANTIATE

}  // namespace tightwire
