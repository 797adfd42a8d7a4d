#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <tightwire/session.hpp>
#include <tightwire/telemetry.hpp>

namespace tightwire::telemetry {

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

}  // namespace tightwire::telemetry
