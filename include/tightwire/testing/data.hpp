#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <tightwire/element.hpp>

namespace tightwire::testing {

inline constexpr std::array kElementTypes = {ElementType::f32, ElementType::bf16, ElementType::f16};

inline bool is_finite(float x) { return (detail::to_bits(x) & detail::kMagnitudeMask) < detail::kInfinityBits; }

/// Random numbers that are the same on every platform, which those of <random>'s distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t bits() { return engine_(); }
  /// In [0, n).
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  double gaussian() { return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform()); }
  std::vector<float> gaussian(std::size_t count, double deviation = 1.0) {
    std::vector<float> x(count);
    for (float& element : x) element = static_cast<float>(deviation * gaussian());
    return x;
  }

 private:
  std::mt19937_64 engine_;
};

/// What gradients are taken to look like.
enum class Distribution { gaussian, laplace, student_t3, outliers };
inline constexpr std::array kDistributions = {Distribution::gaussian, Distribution::laplace, Distribution::student_t3,
                                              Distribution::outliers};
constexpr std::string_view to_string(Distribution distribution) {
  switch (distribution) {
    case Distribution::gaussian: return "Gaussian";
    case Distribution::laplace: return "Laplace";
    case Distribution::student_t3: return "Student-t(3)";
    default: return "1/1000 x100";
  }
}

inline float draw(Distribution distribution, Random& random) {
  const double z = random.gaussian();
  switch (distribution) {
    case Distribution::gaussian: return static_cast<float>(z);
    case Distribution::laplace: {
      const double magnitude = -std::log(random.uniform());
      return static_cast<float>(z < 0 ? -magnitude : magnitude);
    }
    case Distribution::student_t3: {
      double squares = 0;
      for (int i = 0; i < 3; ++i) {
        const double normal = random.gaussian();
        squares += normal * normal;
      }
      return static_cast<float>(z / std::sqrt(squares / 3.0));
    }
    default: return static_cast<float>(random.below(1000) == 0 ? 100.0 * z : z);
  }
}

/// 2^20 draws, the same at every call.
inline const std::vector<float>& sample(Distribution distribution) {
  static const auto samples = [] {
    std::array<std::vector<float>, kDistributions.size()> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Random random(i + 1);
      all[i].resize(std::size_t{1} << 20);
      for (float& x : all[i]) x = draw(kDistributions[i], random);
    }
    return all;
  }();
  return samples[static_cast<std::size_t>(distribution)];
}

/// Memory of exactly `size` bytes (so that a sanitizer sees the first byte past it) that starts `misalignment` bytes
/// after an aligned address.
class ExactBytes {
 public:
  explicit ExactBytes(std::size_t size, std::size_t misalignment = 0, std::byte fill = std::byte{0xa5})
      : memory_(new std::byte[size + misalignment]), size_(size), misalignment_(misalignment) {
    std::memset(memory_, static_cast<int>(fill), size + misalignment);
  }
  ExactBytes(std::span<const std::byte> content, std::size_t misalignment = 0)
      : ExactBytes(content.size(), misalignment) {
    if (!content.empty()) std::memcpy(data(), content.data(), content.size());
  }
  ~ExactBytes() { delete[] memory_; }
  ExactBytes(const ExactBytes&) = delete;
  ExactBytes& operator=(const ExactBytes&) = delete;

  std::byte* data() { return memory_ + misalignment_; }
  const std::byte* data() const { return memory_ + misalignment_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data(), size_}; }
  float* floats() { return reinterpret_cast<float*>(data()); }

 private:
  std::byte* memory_;
  std::size_t size_;
  std::size_t misalignment_;
};

/// A buffer of an element type, and back. The conversions are those of element.hpp, which have a test of their own.
inline float rounded(ElementType type, float x) {
  switch (type) {
    case ElementType::bf16: return detail::from_bf16(detail::to_bf16(x));
    case ElementType::f16: return detail::from_f16(detail::to_f16(x));
    default: return x;
  }
}
inline std::vector<std::byte> to_buffer(ElementType type, std::span<const float> x) {
  std::vector<std::byte> buffer(x.size() * element_bytes(type));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t element = type == ElementType::f32    ? detail::to_bits(x[i])
                                  : type == ElementType::bf16 ? detail::to_bf16(x[i])
                                                              : detail::to_f16(x[i]);
    std::memcpy(buffer.data() + i * element_bytes(type), &element, element_bytes(type));
  }
  return buffer;
}
inline std::vector<float> from_buffer(ElementType type, std::span<const std::byte> buffer) {
  std::vector<float> x(buffer.size() / element_bytes(type));
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint32_t element = 0;
    std::memcpy(&element, buffer.data() + i * element_bytes(type), element_bytes(type));
    x[i] = type == ElementType::f32    ? detail::from_bits(element)
           : type == ElementType::bf16 ? detail::from_bf16(static_cast<std::uint16_t>(element))
                                       : detail::from_f16(static_cast<std::uint16_t>(element));
  }
  return x;
}
inline std::span<const std::byte> as_bytes(std::span<const float> x) { return std::as_bytes(x); }

}  // namespace tightwire::testing
