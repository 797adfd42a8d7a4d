#pragma once
// The macros that depend on the compiler, in one place. Bodies of functions marked with them hold no conditionals.

#if defined(__CUDACC__)
#define TIGHTWIRE_HD __host__ __device__ __forceinline__
#else
/// Arithmetic shared by host loops and device kernels. Always inlined, so that it takes on the instruction set of the
/// loop that calls it.
#define TIGHTWIRE_HD [[gnu::always_inline]] inline
#endif

/// A loop body that must be inlined into its per-instruction-set wrapper.
#define TIGHTWIRE_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__) && !defined(__CUDACC__)
#define TIGHTWIRE_TARGET_AVX2 [[gnu::target("arch=x86-64-v3")]]
#define TIGHTWIRE_TARGET_AVX512 [[gnu::target("arch=x86-64-v4")]]
#else
#define TIGHTWIRE_TARGET_AVX2
#define TIGHTWIRE_TARGET_AVX512
#endif
