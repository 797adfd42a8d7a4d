#pragma once
#include <chrono>

#include "model.hpp"

namespace tightwire::testing {

/// One parameter of each kind, in a single bucket by default.
inline Model small_model() {
  return {{"first", {40, 30}, ElementType::f32, Int8{}},
          {"second", {1000}, ElementType::f32, Int4{}},
          {"third", {333}, ElementType::bf16, Codec{}}};
}
inline SessionOptions two_shot(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  options.timeout = timeout;
  return options;
}

}  // namespace tightwire::testing
