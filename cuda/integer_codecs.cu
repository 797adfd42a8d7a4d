// The kernels of these built-in codecs.
#include "make.cuh"

namespace tightwire::cuda {

#define TIGHTWIRE_INSTANTIATE(codec) template std::shared_ptr<const Coder> make<codec>(const CodecSettings&);
TIGHTWIRE_INTEGER_CODECS(TIGHTWIRE_INSTANTIATE)
#undef TIGHTWIRE_INSTANTIATE

}  // namespace tightwire::cuda
