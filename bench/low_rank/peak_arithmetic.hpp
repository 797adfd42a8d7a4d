#pragma once

namespace bench {

/// What one core can do at most: fp32 multiplications fused with additions, in registers, in Gflop/s (two per
/// element), by the widest instructions it has. The best of several short runs; 0 where that is not known.
double peak_gigaflops();

}  // namespace bench
