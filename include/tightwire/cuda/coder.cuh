#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <cuda_runtime_api.h>

#include <tightwire/codec/description.hpp>
#include <tightwire/codec/rotated.hpp>
#include <tightwire/cuda.hpp>
#include <tightwire/cuda/combine.cuh>
#include <tightwire/cuda/error.cuh>
#include <tightwire/cuda/kernels.cuh>

namespace tightwire::cuda {

/// Any BlockCodec on a device, for .cu files: `DeviceCoder coder(MyCodec{})`. Compile them with --fmad=false, or
/// products and sums are rounded otherwise than on the host; linking tightwire::cuda_codecs does that.
///
/// A statistic of one's own may have `join(Stat)`, which takes another of the same part in; else one thread forms the
/// statistic of a part alone.
template <BlockCodec C>
class DeviceCoder final : public Coder {
 public:
  explicit DeviceCoder(C codec = {}) : rotated_{0, codec, 0}, rotation_{}, form_(checked_form(codec)) {}
  template <std::same_as<Rotated<C>> R>  // so that {} is a codec
  explicit DeviceCoder(R rotated)
      : rotated_(rotated), rotation_(rotation_of(rotated)), form_(checked_form(rotated.codec)) {
    tightwire::detail::check_rotation(rotated);
    form_ = host::form(rotated.codec, static_cast<std::size_t>(rotated.size));
  }

  std::string spec() const override { return tightwire::detail::spec_of(rotated_); }
  std::size_t block() const noexcept override { return form_.grain; }
  std::size_t wire_bytes(std::size_t count) const noexcept override { return host::layout(form_, count).bytes; }
  bool lossless(ElementType type) const noexcept override { return C::lossless(type) && rotated_.size == 0; }
  bool stochastic(bool error_feedback) const noexcept override {
    return tightwire::detail::is_stochastic(rotated_.codec, error_feedback);
  }

  void load() const override {
    load("encode", detail::encode_kernel<C>);
    load("combine", detail::combine_kernel<C>);
    load("decode", detail::decode_kernel<C>);
  }

  void encode(ElementType type, const tightwire::Coder::Encode& job, std::uint64_t* nonfinite,
              Stream stream) const override {
    if (job.count == 0) return;
    const detail::Shape shape = shape_of(job.count);
    const detail::EncodeJob mine{.shape = shape,
                                 .rotation = rotation_,
                                 .noise = noise_of(job.noise),
                                 .type = type,
                                 .data = static_cast<const std::byte*>(job.data),
                                 .residual = {job.residual.before, job.residual.after},
                                 .wire = job.wire,
                                 .nonfinite = counter(nonfinite)};
    launch("encode", detail::encode_kernel<C>, shape, detail::Workspace<C>::bytes(shape, mine.noise.given), mine,
           stream);
  }

  void combine(ElementType type, const tightwire::Coder::Combine& job, tightwire::Coder::NonFinite* met,
               Stream stream) const override {
    if (job.sources.size() > detail::kMostRanks)
      throw Error(Errc::unsupported, "combine of " + std::to_string(job.sources.size()) +
                                         " contributions on a device; the most is " +
                                         std::to_string(detail::kMostRanks));
    if (job.count == 0) return;
    const detail::Shape shape = shape_of(job.count);
    detail::CombineJob mine{.shape = shape,
                            .rotation = rotation_,
                            .sender_noise = noise_of(job.sender_noise),
                            .owner_noise = noise_of(job.owner_noise),
                            .type = type,
                            .lossless = lossless(type),
                            .has_own = std::find(job.sources.begin(), job.sources.end(), nullptr) != job.sources.end(),
                            .divides_by_power_of_two = std::has_single_bit(static_cast<unsigned>(job.divisor)),
                            .divisor = job.divisor,
                            .inverse = 1.0f / job.divisor,
                            .ranks = static_cast<unsigned>(job.sources.size()),
                            .data = static_cast<const std::byte*>(job.data),
                            .sender = {job.sender.before, job.sender.after},
                            .owner = {job.owner.before, job.owner.after},
                            .wire = job.wire,
                            .out = static_cast<std::byte*>(job.out),
                            .contribution = counter(met != nullptr ? &met->contribution : nullptr),
                            .result = counter(met != nullptr ? &met->result : nullptr),
                            .sources = {}};
    std::copy(job.sources.begin(), job.sources.end(), mine.sources);
    const bool noisy = mine.sender_noise.given || mine.owner_noise.given;
    launch("combine", detail::combine_kernel<C>, shape, detail::Workspace<C>::bytes(shape, noisy), mine, stream);
  }

  void decode(ElementType type, const tightwire::Coder::Decode& job, Stream stream) const override {
    if (job.count == 0) return;
    const detail::Shape shape = shape_of(job.count);
    const detail::DecodeJob mine{
        .shape = shape, .rotation = rotation_, .type = type, .wire = job.wire, .out = static_cast<std::byte*>(job.out)};
    launch("decode", detail::decode_kernel<C>, shape, shape.tile * sizeof(float), mine, stream);
  }

 private:
  static_assert(kMostSources == detail::kMostRanks);
  static host::Form checked_form(const C& codec) {
    tightwire::detail::check_block(codec);
    return host::form(codec);
  }
  static unsigned long long* counter(std::uint64_t* number) {
    static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
    return reinterpret_cast<unsigned long long*>(number);
  }
  detail::Shape shape_of(std::size_t count) const { return detail::shape_of(form_, count, rotated_.size != 0); }
  /// Element e of a block takes bit e % 32 of word e / 32 % 4 of call e / 128 (host::Rotation).
  static detail::Rotation rotation_of(const Rotated<C>& rotated) {
    detail::Rotation rotation{.size = static_cast<unsigned>(rotated.size)};
    for (unsigned word = 0; word < (rotation.size + 31) / 32; ++word)
      rotation.signs[word] =
          tightwire::detail::Philox::at({word / 4, 0, 0, 0}, static_cast<std::uint32_t>(rotated.seed),
                                        static_cast<std::uint32_t>(rotated.seed >> 32))
              .words[word % 4];
    return rotation;
  }
  static detail::NoiseKey noise_of(const Noise* noise) {
    if (noise == nullptr) return {};
    return {.given = true,
            .key = {tightwire::detail::noise_key(*noise, 0), tightwire::detail::noise_key(*noise, 1)},
            .use = noise->use,
            .parameter = noise->parameter,
            .first = noise->first};
  }

  /// Once for a kernel and a device, on which it may have all the shared memory there is from then on: were it what a
  /// launch needs, another thread could lower it before that launch.
  template <class Job>
  static void load(const char* verb, void (*kernel)(Job)) {
    static std::atomic<std::uint64_t> loaded{0};  // by device
    int device = 0, most = 0;
    detail::check(cudaGetDevice(&device), "cudaGetDevice", verb, C::name);
    const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
    if ((loaded.load(std::memory_order_acquire) & bit) != 0) return;
    const auto* const function = reinterpret_cast<const void*>(kernel);
    cudaFuncAttributes attributes{};
    detail::check(cudaFuncGetAttributes(&attributes, function), "cudaFuncGetAttributes", verb, C::name);
    detail::check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                  "cudaDeviceGetAttribute", verb, C::name);
    detail::check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       most - static_cast<int>(attributes.sharedSizeBytes)),
                  "cudaFuncSetAttribute", verb, C::name);
    loaded.fetch_or(bit, std::memory_order_release);
  }
  template <class Job>
  void launch(const char* verb, void (*kernel)(Job), const detail::Shape& shape, std::size_t shared_bytes, Job job,
              Stream stream) const {
    load(verb, kernel);
    const std::size_t tiles = (shape.count + shape.tile - 1) / shape.tile;
    if (tiles > std::numeric_limits<int>::max())
      throw Error(Errc::unsupported, std::string(verb) + " with " + std::string(C::name) + " of " +
                                         std::to_string(shape.count) + " elements at a time, which are too many");
    void* arguments[] = {&job};
    detail::check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(tiles)),
                                   dim3(detail::kThreads), arguments, shared_bytes, stream),
                  "cudaLaunchKernel", verb, C::name);
  }

  Rotated<C> rotated_;
  detail::Rotation rotation_;
  host::Form form_;
};

template <BlockCodec C>
DeviceCoder(Rotated<C>) -> DeviceCoder<C>;

}  // namespace tightwire::cuda
