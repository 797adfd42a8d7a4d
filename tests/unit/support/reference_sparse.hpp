#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tightwire/element.hpp>

namespace tightwire::testing {

/// TopK of one fp32 parameter by its definition: by sorting, without thresholds, sections, frames or windows. Values
/// go as fp32 or rounded to bf16.
class ReferenceTopK {
 public:
  struct Options {
    double ratio = 0.01;
    bool bf16_values = false;
    bool two_shot = true;
    bool reselect = true;
  };

  ReferenceTopK(std::size_t count, std::size_t ranks, Options options)
      : options_(options), residuals(ranks, std::vector<float>(count)) {}

  std::vector<float> step(const std::vector<std::vector<float>>& gradients) {
    const std::size_t count = gradients[0].size(), ranks = gradients.size();
    const auto k = static_cast<std::size_t>(std::ceil(options_.ratio * static_cast<double>(count) - 1e-9));
    std::vector<std::vector<float>> sent(ranks, std::vector<float>(count));
    std::vector<std::vector<bool>> chosen(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < count; ++i) residuals[r][i] += gradients[r][i];
      chosen[r] = largest(residuals[r], std::vector<bool>(count, true), 0, count, std::max<std::size_t>(k, 1));
      for (std::size_t i = 0; i < count; ++i) {
        if (!chosen[r][i]) continue;
        sent[r][i] = coded(residuals[r][i]);
        residuals[r][i] -= sent[r][i];
      }
    }
    std::vector<float> result(count);
    const std::size_t owners = options_.two_shot ? ranks : 1;
    for (std::size_t owner = 0; owner < owners; ++owner) {
      const std::size_t begin = count * owner / owners, end = count * (owner + 1) / owners;
      std::vector<float> sums(count);
      std::vector<bool> present(count);
      std::size_t entries = 0;
      for (std::size_t i = begin; i < end; ++i)
        for (std::size_t r = 0; r < ranks; ++r) {
          if (!chosen[r][i]) continue;
          sums[i] = present[i] ? sums[i] + sent[r][i] : sent[r][i];
          present[i] = true;
          ++entries;
        }
      std::vector<bool> kept = present;
      if (options_.two_shot && options_.reselect)
        kept = largest(sums, present, begin, end, (entries + ranks - 1) / ranks);
      for (std::size_t i = begin; i < end; ++i) {
        if (!present[i]) continue;
        if (!kept[i]) {
          residuals[owner][i] += sums[i];
          continue;
        }
        const float mean = sums[i] / static_cast<float>(ranks);
        result[i] = options_.two_shot ? coded(mean) : mean;
        if (options_.two_shot && options_.bf16_values)
          residuals[owner][i] += (mean - result[i]) * static_cast<float>(ranks);
      }
    }
    return result;
  }

 private:
  float coded(float x) const { return options_.bf16_values ? detail::from_bf16(detail::to_bf16(x)) : x; }
  static std::vector<bool> largest(const std::vector<float>& v, const std::vector<bool>& candidate, std::size_t begin,
                                   std::size_t end, std::size_t k) {
    std::vector<std::size_t> order;
    for (std::size_t i = begin; i < end; ++i)
      if (candidate[i] && v[i] != 0.0f) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return std::abs(v[a]) > std::abs(v[b]); });
    std::vector<bool> chosen(v.size());
    for (std::size_t i = 0; i < std::min(k, order.size()); ++i) chosen[order[i]] = true;
    return chosen;
  }

  Options options_;

 public:
  std::vector<std::vector<float>> residuals;  ///< by rank
};

}  // namespace tightwire::testing
