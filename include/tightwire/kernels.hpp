#pragma once
// The loops that are not those of one codec: of buffers, top-k, momentum and PowerSGD.
#include <tightwire/host/elements.hpp>
#include <tightwire/host/find_large.hpp>
#include <tightwire/low_rank/cholesky_qr.hpp>
#include <tightwire/low_rank/column_sums.hpp>
#include <tightwire/low_rank/products.hpp>

/// Calls X(kernel) for each; see TIGHTWIRE_KERNEL.
#define TIGHTWIRE_KERNELS(X)        \
  X(Widen<ElementType::bf16>)       \
  X(Widen<ElementType::f16>)        \
  X(Narrow<ElementType::bf16>)      \
  X(Narrow<ElementType::f16>)       \
  X(Round<ElementType::bf16>)       \
  X(Round<ElementType::f16>)        \
  X(FindLarge)                      \
  X(KeepLarge)                      \
  X(FindBand)                       \
  X(ApplyMomentum)                  \
  X(low_rank::RowProducts)          \
  X(low_rank::ColumnProducts)       \
  X(low_rank::OuterProducts<true>)  \
  X(low_rank::OuterProducts<false>) \
  X(low_rank::DotProduct<float>)    \
  X(low_rank::DotProduct<double>)   \
  X(low_rank::SubtractMultiple)     \
  X(low_rank::RoundMultiple)        \
  X(low_rank::GramMatrix)           \
  X(low_rank::InvertCholesky)       \
  X(low_rank::MultiplyTriangular)
