#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

namespace tightwire::testing {

/// A parameter and the codec it shall have.
struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  ElementType type = ElementType::f32;
  Codec codec = {};
  int priority = 0;

  std::size_t count() const {
    std::size_t product = 1;
    for (const std::int64_t extent : shape) product *= static_cast<std::size_t>(extent);
    return product;
  }
};
using Model = std::vector<Tensor>;

/// A Session for a model, not sealed.
inline std::unique_ptr<Session> open_session(std::shared_ptr<Transport> transport, const Model& model,
                                             SessionOptions options = {}) {
  options.policy.exact_by_default = {};
  for (const Tensor& tensor : model) options.policy.rules.push_back({.name = tensor.name, .codec = tensor.codec});
  auto session = std::make_unique<Session>(std::move(transport), std::move(options));
  for (const Tensor& tensor : model) {
    const ParameterId id = session->add(tensor.name, tensor.shape, tensor.type);
    if (tensor.priority != 0) session->set_priority(id, tensor.priority);
  }
  return session;
}
inline std::unique_ptr<Session> sealed_session(std::shared_ptr<Transport> transport, const Model& model,
                                               SessionOptions options = {}) {
  auto session = open_session(std::move(transport), model, std::move(options));
  session->seal();
  return session;
}

/// Deterministic numbers at a nanosecond each (splitmix64).
class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }
  /// About bell-shaped, deviation about 1: the sum of four uniforms.
  float bell() {
    const std::uint64_t b = bits();
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(b >> (16 * i) & 0xffff) - 0x8000;
    return static_cast<float>(sum) * 0x1.bb67aep-16f;
  }
  /// Either sign, magnitudes over many powers of two: sums whose order shows.
  float wide(int exponents) {
    const float factor = static_cast<float>(1.0 + static_cast<double>(bits() >> 40) * 0x1p-24);
    const int exponent = static_cast<int>(below(2 * static_cast<std::size_t>(exponents) + 1)) - exponents;
    return std::ldexp((bits() & 1) != 0 ? factor : -factor, exponent);
  }

 private:
  std::uint64_t state_;
};

/// The gradient buffers of one rank: one per parameter, each with guard bytes behind it that nobody may touch.
class Gradients {
 public:
  explicit Gradients(const Model& model) : model_(&model) {
    for (const Tensor& tensor : model)
      buffers_.emplace_back(tensor.count() * element_bytes(tensor.type) + kGuardBytes, kGuard);
    for (auto& buffer : buffers_) pointers_.push_back(buffer.data());
  }

  /// Element i of parameter p becomes f(p, i), rounded to its type.
  template <class F>
  void fill(F f) {
    for (std::size_t p = 0; p < model_->size(); ++p)
      for (std::size_t i = 0; i < (*model_)[p].count(); ++i) set(p, i, f(p, i));
  }
  void fill_bell(std::uint64_t seed) {
    FastRandom random(seed);
    fill([&](std::size_t, std::size_t) { return random.bell(); });
  }
  void fill_wide(std::uint64_t seed, int exponents = 12) {
    FastRandom random(seed);
    fill([&](std::size_t, std::size_t) { return random.wide(exponents); });
  }

  void set(std::size_t p, std::size_t i, float x) {
    switch ((*model_)[p].type) {
      case ElementType::bf16: return put(p, i, tightwire::detail::to_bf16(x));
      case ElementType::f16: return put(p, i, tightwire::detail::to_f16(x));
      default: return put(p, i, x);
    }
  }
  float get(std::size_t p, std::size_t i) const {
    switch ((*model_)[p].type) {
      case ElementType::bf16: return tightwire::detail::from_bf16(at<std::uint16_t>(p, i));
      case ElementType::f16: return tightwire::detail::from_f16(at<std::uint16_t>(p, i));
      default: return at<float>(p, i);
    }
  }
  std::vector<float> values(std::size_t p) const {
    std::vector<float> all((*model_)[p].count());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = get(p, i);
    return all;
  }

  std::span<void* const> pointers() const { return pointers_; }
  /// Every byte, guards included.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const auto& buffer : buffers_) all.insert(all.end(), buffer.begin(), buffer.end());
    return all;
  }
  bool guards_intact() const {
    for (const auto& buffer : buffers_)
      for (std::size_t i = buffer.size() - kGuardBytes; i < buffer.size(); ++i)
        if (buffer[i] != kGuard) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuardBytes = 32;
  static constexpr std::byte kGuard{0x5a};

  template <class T>
  void put(std::size_t p, std::size_t i, T x) {
    std::memcpy(buffers_[p].data() + i * sizeof(T), &x, sizeof x);
  }
  template <class T>
  T at(std::size_t p, std::size_t i) const {
    T x;
    std::memcpy(&x, buffers_[p].data() + i * sizeof(T), sizeof x);
    return x;
  }

  const Model* model_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<void*> pointers_;
};

}  // namespace tightwire::testing
