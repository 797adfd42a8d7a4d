#include "measure_codec.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include <tightwire/testing/data.hpp>
#include <tightwire/tightwire.hpp>

namespace tightwire::tool {
namespace {

/// The shortest of some tries, in seconds for one.
template <class Work>
double seconds(const Work& work) {
  using SteadyClock = std::chrono::steady_clock;
  double best = 1e9, total = 0;
  for (int round = 0; round < 200 && (round < 3 || total < 0.06); ++round) {
    const auto begin = SteadyClock::now();
    work();
    const double took = std::chrono::duration<double>(SteadyClock::now() - begin).count();
    best = std::min(best, took);
    total += took;
  }
  return best;
}

struct Speed {
  double encode, decode;
};
Speed measure(const Coder& coder, std::size_t count, int repeats) {
  const std::vector<float>& sample = testing::sample(testing::Distribution::laplace);
  std::vector<float> x(count), residual(count, 0.0f), out(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = sample[i % sample.size()];
  std::vector<std::byte> wire(coder.wire_bytes(count));
  const double bytes = static_cast<double>(count * sizeof(float)) * repeats;
  const double encode = seconds([&] {
    for (int i = 0; i < repeats; ++i)
      coder.encode(ElementType::f32, {x.data(), {residual.data(), residual.data()}, count, wire.data()});
  });
  const double decode = seconds([&] {
    for (int i = 0; i < repeats; ++i) coder.decode(ElementType::f32, {wire.data(), count, out.data()});
  });
  return {1e-9 * bytes / encode, 1e-9 * bytes / decode};
}

}  // namespace

CodecFigures measure_codec(const std::string& spec) {
  const Codec codec = parse_codec(spec);
  const auto coder = codec.coder(ElementType::f32);
  CodecFigures figures;
  figures.spec = codec.spec();
  for (std::size_t d = 0; d < testing::kDistributions.size(); ++d) {
    const std::vector<float>& x = testing::sample(testing::kDistributions[d]);
    std::vector<std::byte> wire(coder->wire_bytes(x.size()));
    std::vector<float> decoded(x.size());
    coder->encode(ElementType::f32, {x.data(), {}, x.size(), wire.data()});
    coder->decode(ElementType::f32, {wire.data(), x.size(), decoded.data()});
    double error = 0, power = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = static_cast<double>(x[i]), difference = exact - static_cast<double>(decoded[i]);
      error += difference * difference;
      power += exact * exact;
    }
    figures.nmse[d] = error / power;
    figures.bits_per_element = 8 * static_cast<double>(wire.size()) / static_cast<double>(x.size());
  }
  const Speed cached = measure(*coder, std::size_t{1} << 14, 50);
  const Speed memory = measure(*coder, std::size_t{1} << 23, 1);
  figures.cached_encode_gb_per_s = cached.encode;
  figures.cached_decode_gb_per_s = cached.decode;
  figures.encode_gb_per_s = memory.encode;
  figures.decode_gb_per_s = memory.decode;
  return figures;
}

}  // namespace tightwire::tool
