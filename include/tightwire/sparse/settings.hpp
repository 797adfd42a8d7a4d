#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include <tightwire/any_codec.hpp>
#include <tightwire/codec/dense.hpp>
#include <tightwire/detail/number_text.hpp>
#include <tightwire/error.hpp>

namespace tightwire {

/// Sends the elements of largest magnitude and keeps the others in the residual (Aji and Heafield, arXiv:1704.05021;
/// Stich et al., arXiv:1809.07599). k is the ratio times the number of elements, rounded up. Of equal magnitudes the
/// lowest index is sent; zeros never are.
struct TopK {
  double ratio = 0.01;     ///< of the elements, above 0 and up to 1
  Codec values = Dense{};  ///< how values are sent: fp32, or any codec; rounded to nearest
  /// Choose from all such parameters of a bucket together, not from each by itself.
  bool per_bucket = false;
  /// Take what reaches the threshold of a sample, from 0.8 to 1.3 k, where that suffices. The sample is of 1 % of the
  /// elements, at least 1,024 and at most 65,536, spread evenly over all of them.
  bool sampled = false;
  /// Let the owner of a range of the sum send its largest elements only, as many as a rank contributed on average, and
  /// keep the others: traffic then does not grow with the number of ranks. Off: the union of all ranks' elements.
  bool reselect = true;
  /// Steps over which the ratio falls to its value, in four stages of equal factors (Lin et al., arXiv:1712.01887: 25
  /// %, 6.25 %, ... of the elements for a ratio of 0.1 %).
  std::uint32_t warm_up_steps = 0;
  /// Allows SessionOptions::error_feedback = false, with which what is not sent is lost, and training fails.
  bool without_feedback = false;
};

/// Sends elements drawn at random, the same on all ranks: no indices are sent, and sums are formed as of any other
/// parameter. One element is drawn from each of k equal runs, from Philox by seed, use and parameter.
struct RandomK {
  double ratio = 0.01;
  Codec values = Dense{};
  /// Allows SessionOptions::error_feedback = false, with which elements are sent 1 / ratio times as large, so that the
  /// mean is right (unbiased), and the others are lost.
  bool without_feedback = false;
};

/// What a Session knows of TopK and RandomK.
struct SparseSettings {
  bool random = false;
  double ratio = 0.01;
  std::shared_ptr<const Coder> values;
  bool per_bucket = false;
  bool sampled = false;
  bool reselect = true;
  std::uint32_t warm_up_steps = 0;
  bool without_feedback = false;

  static constexpr int kWarmUpStages = 4;

  /// The ratio after so many committed steps.
  double ratio_after(std::uint64_t steps) const {
    if (steps >= warm_up_steps) return ratio;
    const auto stage = static_cast<int>(steps * kWarmUpStages / warm_up_steps);
    return std::pow(ratio, static_cast<double>(stage + 1) / (kWarmUpStages + 1));
  }
  /// How many of `count` elements are sent after so many committed steps.
  std::size_t chosen(std::size_t count, std::uint64_t steps) const {
    if (count == 0) return 0;
    // A product a hair above a whole number is that number: 0.07 * 100 is 7.
    const double exact = ratio_after(steps) * static_cast<double>(count) * (1 - 1e-12);
    return std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(exact)), 1, count);
  }

  std::string spec() const {
    std::string text = std::string(random ? "randomk" : "topk") + ":ratio=" + detail::number_text(ratio);
    if (per_bucket) text += ",per-bucket";
    if (sampled) text += ",sampled";
    if (!reselect) text += ",union";
    if (warm_up_steps != 0) text += ",warm-up=" + std::to_string(warm_up_steps);
    if (without_feedback) text += ",without-feedback";
    if (!values->lossless(ElementType::f32)) text += "+" + values->spec();
    return text;
  }
};

namespace detail {

inline std::shared_ptr<const SparseSettings> checked(SparseSettings settings, const Codec& values, const char* what) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::invalid_argument, std::string(what) + ": " + why);
  };
  if (!(settings.ratio > 0 && settings.ratio <= 1))
    refuse("ratio must be above 0 and at most 1, got " + std::to_string(settings.ratio));
  if (values.sparse() != nullptr || values.low_rank() != nullptr)
    refuse("its values need a codec of blocks, not " + values.spec());
  settings.values = values.coder(ElementType::f32);
  return std::make_shared<const SparseSettings>(std::move(settings));
}

}  // namespace detail

inline Codec::Codec(const TopK& top_k)
    : sparse_(detail::checked({.random = false,
                               .ratio = top_k.ratio,
                               .values = nullptr,
                               .per_bucket = top_k.per_bucket,
                               .sampled = top_k.sampled,
                               .reselect = top_k.reselect,
                               .warm_up_steps = top_k.warm_up_steps,
                               .without_feedback = top_k.without_feedback},
                              top_k.values, "topk")) {}
inline Codec::Codec(const RandomK& random_k)
    : sparse_(detail::checked(
          {.random = true, .ratio = random_k.ratio, .values = nullptr, .without_feedback = random_k.without_feedback},
          random_k.values, "randomk")) {}

}  // namespace tightwire
