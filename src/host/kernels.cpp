// The loops of buffers, top-k, momentum and PowerSGD, compiled once.
#include <tightwire/kernels.hpp>

namespace tightwire::host {

#define TIGHTWIRE_INSTANTIATE(...) TIGHTWIRE_KERNEL(template, __VA_ARGS__)
TIGHTWIRE_KERNELS(TIGHTWIRE_INSTANTIATE)
#undef TIGHTWIRE_INSTANTIATE

}  // namespace tightwire::host
