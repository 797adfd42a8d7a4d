#include "peak_arithmetic.hpp"

#include <algorithm>
#include <chrono>

#include <tightwire/detail/lanes.hpp>
#include <tightwire/host/dispatch.hpp>

namespace bench {
namespace {

namespace host = tightwire::host;

/// Chains of fused multiplications and additions, as many as hide the latency of one.
struct Chains {
  struct Job {
    long rounds;
    float* out;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    using Lanes = tightwire::detail::Lanes<float, W>;
    constexpr int kChains = 12;
    Lanes chain[kChains];
    for (int i = 0; i < kChains; ++i) chain[i] = Lanes(static_cast<float>(i) * 1e-3f);
    const Lanes a(job.out[0]), b(job.out[1]);
    for (long round = 0; round < job.rounds; ++round) TIGHTWIRE_UNROLL(12)
    for (int i = 0; i < kChains; ++i) tightwire::detail::subtract_exact_product(chain[i], a, b);
    for (int i = 1; i < kChains; ++i) chain[0] = chain[0] + chain[i];
    job.out[2] = chain[0].v[0];
  }
};

}  // namespace

double peak_gigaflops() {
  constexpr long kRounds = 200'000;
  const host::Level level = host::level();
  const double lanes = level == host::Level::avx512 ? 16 : level == host::Level::avx2 ? 8 : 4;
  float values[3] = {0.5f, 0.25f, 0};
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const auto began = std::chrono::steady_clock::now();
    host::run<Chains>(level, {kRounds, values});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    best = std::max(best, 2 * lanes * 12 * static_cast<double>(kRounds) / took.count() / 1e9);
  }
  return best;
}

}  // namespace bench
