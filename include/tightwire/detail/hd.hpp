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

/// The same for a lambda, behind its parameters.
#define TIGHTWIRE_LAMBDA_INLINE __attribute__((always_inline))

#if defined(__x86_64__) && !defined(__CUDACC__)
// Features, not arch=: an arch would replace a consumer's -march, and g++ inlines nothing across two of them.
#define TIGHTWIRE_TARGET_AVX2 [[gnu::target("avx2,fma,bmi,bmi2")]]
#define TIGHTWIRE_TARGET_AVX512 [[gnu::target("avx2,fma,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512cd")]]
#else
#define TIGHTWIRE_TARGET_AVX2
#define TIGHTWIRE_TARGET_AVX512
#endif

/// Unrolls the loop that follows completely; its trip count must be a constant of at most `count`.
#if defined(__clang__)
#define TIGHTWIRE_UNROLL(count) _Pragma("clang loop unroll(full)")
#else
#define TIGHTWIRE_PRAGMA(text) _Pragma(#text)
#define TIGHTWIRE_UNROLL(count) TIGHTWIRE_PRAGMA(GCC unroll count)
#endif
