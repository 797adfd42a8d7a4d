#include "roofline.hpp"

#include <cstddef>
#include <cstring>

#include <tightwire/host/dispatch.hpp>
#include <tightwire/host/elements.hpp>

namespace bench {
namespace {

using namespace tightwire::host;

struct ScaleInPlace {
  struct Job {
    float* x;
    std::size_t count;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    for (std::size_t i = 0; i < job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      load<W>(job.x + i, x);
      TIGHTWIRE_UNROLL(4)
      for (int k = 0; k < 4; ++k) x[k] = x[k] * Lanes<float, W>(1.0001f);
      store<W>(x, job.x + i);
    }
  }
};

struct AddInPlace {
  struct Job {
    float* x;
    const float* y;
    std::size_t count;
    std::byte* bytes = nullptr;
  };
  template <int W>
  TIGHTWIRE_INLINE static void run(const Job& job) {
    for (std::size_t i = 0; i < job.count; i += 4 * W) {
      Lanes<float, W> x[4];
      load<W>(job.x + i, x);
      if (job.bytes != nullptr) std::memcpy(job.bytes + i, x, 4 * W);
      add<W>(job.y + i, x);
      store<W>(x, job.x + i);
    }
  }
};

}  // namespace

std::vector<Subject> roofline(Level level, float* x, const float* y, std::size_t count) {
  return {{"memcpy", 8, 12, [=] { std::memcpy(x, y, count * sizeof(float)); }},
          {"x[i] *= c", 8, 8,
           [=] {
             run<ScaleInPlace>(level, {x, count});
           }},
          {"x[i] += y[i]", 12, 12, [=] {
             run<AddInPlace>(level, {x, y, count, nullptr});
           }}};
}

Subject moves_of_encoding(Level level, float* x, const float* y, std::byte* bytes, std::size_t count) {
  return {"x[i] += y[i], and a byte", 13, 14, [=] { run<AddInPlace>(level, {x, y, count, bytes}); }};
}

}  // namespace bench
