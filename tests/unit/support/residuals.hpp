#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "model.hpp"

namespace tightwire::testing {

inline constexpr Algorithm kAlgorithms[] = {Algorithm::two_shot, Algorithm::one_shot};

/// Several buckets of several chunks each for a model of a few thousand elements.
inline SessionOptions in_pieces(Algorithm algorithm) {
  SessionOptions options;
  options.plan.algorithm = algorithm;
  options.plan.share_elements = 300;
  options.bucket_bytes = 5000;
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// Every residual of a rank, bit for bit.
inline std::vector<float> residuals(const Session& session) {
  std::vector<float> all;
  for (ParameterId p = 0; p < session.parameters().size(); ++p) {
    const auto sender = session.sender_residual(p);
    all.insert(all.end(), sender.begin(), sender.end());
  }
  for (BucketId id = 0; id < session.buckets(); ++id) {
    const auto owner = session.owner_residual(id);
    all.insert(all.end(), owner.begin(), owner.end());
  }
  return all;
}
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
inline bool all_finite(const std::vector<float>& values) {
  for (const float x : values)
    if (!std::isfinite(x)) return false;
  return true;
}

/// One reduction of gradients that are a function of rank and seed.
inline void reduce(Session& session, Gradients& gradients, std::uint64_t seed) {
  gradients.fill_bell(seed * 100 + static_cast<std::uint64_t>(session.rank()));
  session.all_reduce(gradients.pointers());
}

}  // namespace tightwire::testing
