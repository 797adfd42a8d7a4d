#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>
#include <tightwire/telemetry.hpp>

namespace tightwire::telemetry {

inline void to_floats(ElementType type, const void* from, std::span<float> to) {
  const auto* halves = static_cast<const std::uint16_t*>(from);
  if (type == ElementType::f32) std::memcpy(to.data(), from, to.size() * sizeof(float));
  if (type == ElementType::bf16)
    std::transform(halves, halves + to.size(), to.begin(), [](std::uint16_t half) { return detail::from_bf16(half); });
  if (type == ElementType::f16)
    std::transform(halves, halves + to.size(), to.begin(), [](std::uint16_t half) { return detail::from_f16(half); });
}

inline double norm(std::span<const float> values) {
  double squares = 0;
  for (const float x : values) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

/// Reduces the first elements of one parameter, another one each time, exactly as well, to tell what the codec made of
/// it. Collective. Parameters that are not reduced over all ranks, or have no elements, are left out.
class Shadow {
 public:
  /// All ranks together.
  Shadow(const Session& session, const std::shared_ptr<Transport>& transport, std::uint64_t every,
         std::size_t most_elements);

  /// Before and after the reduction of a bucket.
  void take_gradient(const Session& session, const Bucket& bucket);
  void take_result(const Bucket& bucket);
  /// All ranks together. Of a step that was not sampled, or in which the parameter was not reduced: nothing, on all
  /// ranks alike as long as they reduce the same buckets.
  std::optional<SampleRecord> end_step(const Session& session);

 private:
  bool due() const { return !candidates_.empty() && steps_ % every_ == every_ - 1; }
  std::size_t parameter() const { return candidates_[steps_ / every_ % candidates_.size()]; }
  std::optional<std::size_t> place_in(const Bucket& bucket) const;

  std::uint64_t every_;
  std::uint64_t steps_ = 0;
  std::vector<std::size_t> candidates_;
  std::unique_ptr<Session> exact_;
  std::vector<float> gradient_, result_;
  std::size_t elements_ = 0;
  ElementType type_ = ElementType::f32;
  bool has_gradient_ = false, has_result_ = false;
};

inline Shadow::Shadow(const Session& session, const std::shared_ptr<Transport>& transport, std::uint64_t every,
                      std::size_t most_elements)
    : every_(every) {
  std::size_t longest = 0;
  for (std::size_t id = 0; id < session.parameters().size(); ++id) {
    const Parameter& parameter = session.parameters()[id];
    if (parameter.operation != Operation::all_reduce || parameter.count == 0) continue;
    candidates_.push_back(id);
    longest = std::max(longest, std::min(parameter.count, most_elements));
  }
  if (candidates_.empty()) return;
  gradient_.resize(longest);
  result_.resize(longest);
  // The mean, whatever the session makes: compared after scaling.
  exact_ = std::make_unique<Session>(transport, SessionOptions{.codec = {}, .timeout = session.options().timeout});
  exact_->add("telemetry of every " + std::to_string(every) + " steps", {static_cast<std::int64_t>(longest)});
  exact_->seal();
}

inline std::optional<std::size_t> Shadow::place_in(const Bucket& bucket) const {
  const auto at = std::find(bucket.parameters.begin(), bucket.parameters.end(), parameter());
  if (at == bucket.parameters.end()) return std::nullopt;
  return static_cast<std::size_t>(at - bucket.parameters.begin());
}

inline void Shadow::take_gradient(const Session& session, const Bucket& bucket) {
  if (!due()) return;
  const auto place = place_in(bucket);
  if (!place) return;
  const Parameter& of = session.parameters()[parameter()];
  elements_ = std::min(of.count, gradient_.size());
  to_floats(of.type, bucket.pointers[*place], std::span(gradient_).first(elements_));
  std::fill(gradient_.begin() + static_cast<std::ptrdiff_t>(elements_), gradient_.end(), 0.0f);
  type_ = of.type;
  has_gradient_ = true;
}

inline void Shadow::take_result(const Bucket& bucket) {
  if (!due() || !has_gradient_) return;
  const auto place = place_in(bucket);
  if (!place) return;
  to_floats(type_, bucket.pointers[*place], std::span(result_).first(elements_));
  has_result_ = true;
}

inline std::optional<SampleRecord> Shadow::end_step(const Session& session) {
  const bool sampled = due() && has_result_;
  const std::size_t id = candidates_.empty() ? 0 : parameter();
  ++steps_;
  has_gradient_ = has_result_ = false;
  if (!sampled) return std::nullopt;
  exact_->all_reduce(std::span<float>(gradient_));
  exact_->commit();
  const float scale = session.options().average ? 1.0f : static_cast<float>(session.size());
  for (std::size_t i = 0; i < elements_; ++i) {
    gradient_[i] *= scale;
    result_[i] -= gradient_[i];
  }
  SampleRecord sample{.parameter = session.parameters()[id].name, .elements = elements_};
  sample.gradient_norm = norm(std::span(gradient_).first(elements_));
  sample.error = sample.gradient_norm > 0 ? norm(std::span(result_).first(elements_)) / sample.gradient_norm
                                          : std::numeric_limits<double>::quiet_NaN();
  sample.residual_norm = norm(session.sender_residual(id, elements_));
  return sample;
}

}  // namespace tightwire::telemetry
