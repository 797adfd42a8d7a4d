#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/host/elements.hpp>
#include <tightwire/host/find_large.hpp>
#include <tightwire/momentum.hpp>
#include <tightwire/sparse/largest.hpp>
#include <tightwire/sparse/sample.hpp>

namespace tightwire::sparse {

/// A parameter that elements are chosen from.
struct Source {
  const void* data;  ///< [count] elements of `type`
  ElementType type;
  std::size_t count;
  std::uint32_t first;  ///< place of its first element among all that are chosen from together
  Residual residual;
  Residual momentum;  ///< null: no momentum correction
};

/// Chooses the k elements of largest magnitude from data + residual (with momentum correction, momentum + residual). Of
/// equal magnitudes the lowest place is chosen; zeros never are.
///
/// One pass over the data finds what reaches a threshold, a little below the k-th magnitude that is expected after the
/// last ones, and takes what reaches that out of the residual; those few for which this was wrong are put right.
/// Whatever the threshold was, the choice is exact: one that is too low rises on the way, and one that was too high is
/// lowered for another pass, of which there are three at most.
///
/// Residuals hold the sums afterwards (in `residual.after`), but zeros in place of the chosen elements. Memory: about
/// 32 k bytes.
class Selection {
 public:
  explicit Selection(host::Level level = host::level()) : level_(level), tile_(kTileElements), largest_(level) {}

  /// `count` from 1 on. Places and values are ascending by place, until the next call.
  void choose(std::span<const Source> sources, std::size_t count, const MomentumCorrection& momentum) {
    start(sources, count, momentum);
    add_and_find(threshold_, threshold_ == 0 ? kAboveAll : expected_);
    settle();
  }

  /// Takes what reaches the threshold of a sample, if that is from 0.8 to 1.3 times `count`; else as `choose`. Depends
  /// on the data and the seed alone, not on earlier calls.
  void choose_sampled(std::span<const Source> sources, std::size_t count, const MomentumCorrection& momentum,
                      const SampleSeed& seed) {
    start(sources, count, momentum);
    const std::uint32_t threshold = sample_threshold(seed);
    add_and_find(threshold, threshold);
    if (cut_ || !about_right(found_, count))
      settle();
    else
      chosen_ = found_;
  }

  /// Adds residuals and momentum, and chooses nothing: residuals hold all sums. Returns whether some sum is not finite.
  bool add(std::span<const Source> sources, const MomentumCorrection& momentum) {
    start(sources, 1, momentum);
    adding_only_ = true;
    add_and_find(kNonFinite, kAboveAll);
    adding_only_ = false;
    threshold_ = 0;
    return found_ != 0;
  }

  std::span<const std::uint32_t> places() const { return {places_.data(), chosen_}; }
  std::span<const float> values() const { return {values_.data(), chosen_}; }
  /// Sums that are NaN or infinite and were not chosen, as there were more than k of them. They leave no trace: the
  /// residual is as it was before, or 0 where that was overwritten.
  std::uint64_t forgotten() const { return forgotten_; }
  /// How often the last call read all elements: once, unless the threshold was too high.
  int passes() const { return passes_; }

 private:
  static constexpr std::size_t kTileElements = 2048;
  static constexpr std::size_t kLeastRoom = std::size_t{1} << 14;
  static constexpr std::size_t kSlack = 16;
  static constexpr std::size_t kLine = 16;
  static constexpr int kMostPasses = 4;
  static constexpr std::uint32_t kOctave = std::uint32_t{1} << 23;
  static constexpr std::uint32_t kNonFinite = tightwire::detail::kInfinityBits;
  static constexpr std::uint32_t kWidestMargin = 4 * kOctave, kFirstMargin = kOctave / 16,
                                 kNarrowestMargin = kOctave / 1024;

  void start(std::span<const Source> sources, std::size_t count, const MomentumCorrection& momentum) {
    sources_ = sources;
    momentum_ = momentum;
    found_ = chosen_ = 0;
    forgotten_ = 0;
    passes_ = 0;
    cut_ = false;
    elements_ = 0;
    for (const Source& source : sources) elements_ += source.count;
    if (count != count_) {
      count_ = count;
      threshold_ = expected_ = last_least_ = 0;
      margin_ = kFirstMargin;
      room_ = count + std::max(count, kLeastRoom);
      places_.resize(room_ + kSlack);
      values_.resize(room_ + kSlack);
      sample_.reserve(Sample::kMost);
      largest_.reserve(std::max(room_, Sample::kMost));
    }
  }

  /// The pass that adds residuals and momentum, and takes elements out. Threshold 0: found out from the first elements.
  void add_and_find(std::uint32_t threshold, std::uint32_t taken) {
    ++passes_;
    looked_for_ = std::max<std::uint32_t>(threshold, 1);
    now_ = looked_for_;
    taken_ = taken;
    std::size_t unknown_until = threshold == 0 ? std::min(elements_ / 4, kLeastRoom) : 0;
    for (const Source& source : sources_) {
      const bool straight = !source.momentum && host::holds_floats(source.type, source.data);
      for (std::size_t at = 0; at < source.count;) {
        const std::size_t length = next_length(source.count - at, straight);
        const float* x = straight ? static_cast<const float*>(source.data) + at : gradient(source, at, length);
        find(x, advanced(source.residual, at), length, source.first + static_cast<std::uint32_t>(at));
        at += length;
        if (unknown_until != 0 && source.first + at >= unknown_until) {
          guess_threshold(source.first + at);
          unknown_until = 0;
        }
      }
    }
  }

  /// Another pass over the sums that are there already.
  void find_again(std::uint32_t threshold) {
    ++passes_;
    put_back();
    found_ = 0;
    looked_for_ = now_ = threshold;
    for (const Source& source : sources_) {
      const bool kept = static_cast<bool>(source.residual);
      const bool straight = kept || host::holds_floats(source.type, source.data);
      for (std::size_t at = 0; at < source.count;) {
        const std::size_t length = next_length(source.count - at, straight);
        const float* x = kept       ? source.residual.after + at
                         : straight ? static_cast<const float*>(source.data) + at
                                    : widened(source, at, length);
        find(x, {}, length, source.first + static_cast<std::uint32_t>(at));
        at += length;
      }
    }
  }

  /// Elements to look at next. Every one of them may be found, so there must be room for all.
  std::size_t next_length(std::size_t left, bool straight) {
    if (room_ - found_ < kTileElements && adding_only_) found_ = 1;  // that there are some is all that is asked
    if (room_ - found_ < kTileElements && found_ > count_) {
      put_back();
      now_ = std::min(cut_to_count() + 1, kNonFinite);
      cut_ = true;
    }
    std::size_t most = room_ - found_;
    if (!straight || !threshold_known()) most = std::min(most, kTileElements);
    // Whole cache lines, so that what follows begins with one, too.
    return std::min(left, most / kLine * kLine);
  }
  bool threshold_known() const { return now_ > 1; }

  void find(const float* x, const Residual& residual, std::size_t length, std::uint32_t place) {
    found_ = host::run<host::FindLarge>(level_, {.x = x,
                                                 .before = residual.before,
                                                 .after = residual.after,
                                                 .count = length,
                                                 .place = place,
                                                 .threshold = now_,
                                                 .taken = taken_,
                                                 .values = values_.data(),
                                                 .places = places_.data(),
                                                 .found = found_,
                                                 .past_cache = residual.past_cache,
                                                 .density = density()});
  }
  host::FindLarge::Density density() const {
    using enum host::FindLarge::Density;
    if (adding_only_) return seldom;
    if (!threshold_known()) return many;
    return count_ < elements_ / 400 ? seldom : count_ < elements_ / 40 ? some : many;
  }

  const float* widened(const Source& source, std::size_t at, std::size_t length) {
    const auto* from = static_cast<const std::byte*>(source.data) + at * element_bytes(source.type);
    host::widen(level_, source.type, from, length, tile_.data());
    return tile_.data();
  }
  const float* gradient(const Source& source, std::size_t at, std::size_t length) {
    const float* g = widened(source, at, length);
    if (!source.momentum) return g;
    const Residual momentum = advanced(source.momentum, at);
    host::run<host::ApplyMomentum>(
        level_, {g, momentum.before, momentum.after, tile_.data(), length, momentum_.factor, momentum_.nesterov});
    return tile_.data();
  }

  /// As if the pass had begun with a threshold that about a tenth more than needed will reach, if the others are like
  /// the first `seen` elements.
  void guess_threshold(std::size_t seen) {
    const double expected =
        static_cast<double>(seen) * static_cast<double>(count_) / static_cast<double>(std::max(elements_, seen));
    const auto rank = static_cast<std::size_t>(1.1 * expected + 3 * std::sqrt(expected)) + 1;
    if (cut_ || rank >= found_) return;
    looked_for_ = now_ = std::min(largest_.key_of(values_.data(), found_, rank) + 1, kNonFinite);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < found_; ++i) {
      values_[kept] = values_[i];
      places_[kept] = places_[i];
      kept += magnitude_key(values_[i]) >= now_ ? 1 : 0;
    }
    found_ = kept;
  }

  /// Keeps the `count_` largest so far, of which none was taken out. What comes later must be larger than the least of
  /// them, which is returned, as of equals the first are chosen; but everything that is not finite must be found, so
  /// that it can be taken out of the residual.
  std::uint32_t cut_to_count() {
    const Candidates all{values_.data(), places_.data(), found_};
    found_ = count_;
    return largest_.keep(all, count_, kNonFinite, [&](std::uint32_t place, float) { forget(place); });
  }

  /// Makes an exact choice of what was found, looking again if that is too little: a little lower, then much. Where
  /// that does not do, or nothing at all was found, the threshold is worth nothing, and all elements are looked at.
  void settle() {
    std::uint32_t lower = std::max(4 * margin_, kOctave / 16);
    const bool again = found_ < count_ && looked_for_ > 1;
    for (; found_ < count_ && looked_for_ > 1; lower *= 8) {
      const bool near = found_ != 0 && passes_ < kMostPasses - 1 && looked_for_ > lower;
      find_again(near ? looked_for_ - lower : 1);
    }
    chosen_ = std::min(found_, count_);
    if (found_ == 0) {
      threshold_ = last_least_ = 0;
      return;
    }
    const std::size_t found = found_;
    const std::uint32_t least = found > count_ ? choose_of_more() : choose_all();
    // A step that is not finite says nothing of the next one, which is expected to be as the one before.
    if (least >= kNonFinite) return;
    adapt_margin(found, again);
    expect(least);
  }

  /// Chooses all that was found. Returns the least of it.
  std::uint32_t choose_all() {
    std::uint32_t least = kAboveAll;
    for (std::size_t i = 0; i < found_; ++i) {
      const std::uint32_t key = magnitude_key(values_[i]);
      if (key < taken_) set_rest(places_[i], 0);
      least = std::min(least, key);
    }
    return least;
  }
  /// Chooses `count_` of more. Returns the least of them.
  std::uint32_t choose_of_more() {
    const bool guessed = taken_ == kAboveAll;
    const Expectation expectation{.least = now_,
                                  .key = guessed ? now_ : taken_,
                                  .error = std::clamp(guessed ? kOctave / 2 : margin_ / 4, 1u, kOctave),
                                  .taken = taken_,
                                  .drop = kNonFinite};
    const auto judge = [&](std::uint32_t place, float value, bool kept) {
      if (!kept && magnitude_key(value) >= kNonFinite)
        forget(place);
      else
        set_rest(place, kept ? 0 : value);
    };
    if (const std::uint32_t least =
            largest_.keep_near({values_.data(), places_.data(), found_}, count_, expectation, judge)) {
      found_ = count_;
      return least;
    }
    put_back();
    const std::uint32_t least = cut_to_count();
    choose_all();
    return least;
  }

  /// Undoes that elements were taken out so far, and lets none be any more.
  void put_back() {
    for (std::size_t i = 0; i < found_ && taken_ != kAboveAll; ++i)
      if (magnitude_key(values_[i]) >= taken_) set_rest(places_[i], values_[i]);
    taken_ = kAboveAll;
  }
  void set_rest(std::uint32_t place, float value) {
    const Source& source = source_of(place);
    if (source.residual) source.residual.after[place - source.first] = value;
  }

  /// Wide enough that the k-th is seldom missed, which costs another pass, and not so wide that much more is found.
  void adapt_margin(std::size_t found, bool again) {
    const auto noise = static_cast<std::size_t>(8 * std::sqrt(static_cast<double>(count_)));
    if (again)
      margin_ = std::min(2 * margin_, kWidestMargin);
    else if (cut_)
      margin_ = std::max(margin_ / 2, kNarrowestMargin);
    else if (found > count_ + std::max(count_ / 4, noise))
      margin_ = std::max(margin_ / 16 * 15, kNarrowestMargin);
    else if (found > count_ + noise)
      margin_ = std::max(margin_ / 64 * 63, kNarrowestMargin);
  }

  /// The next k-th magnitude is about as much above or below this one as in the last few steps: residuals grow for as
  /// many steps as it takes to send each of them once. But a jump does not go on.
  void expect(std::uint32_t least) {
    constexpr std::int64_t kMostDrift = 2 * std::int64_t{kOctave}, kSteps = 4;
    const std::int64_t change = std::int64_t{least} - std::int64_t{last_least_};
    if (last_least_ == 0 || std::abs(change) > kMostDrift)
      drift_ = 0;
    else
      drift_ = drift_ == 0 ? change : drift_ + (change - drift_) / kSteps;
    const std::int64_t next = std::int64_t{least} + drift_;
    const auto key = [](std::int64_t from) {
      return static_cast<std::uint32_t>(std::clamp(from, std::int64_t{1}, std::int64_t{kNonFinite}));
    };
    expected_ = key(next);
    threshold_ = key(next - std::int64_t{margin_});
    last_least_ = least;
  }

  const Source& source_of(std::uint32_t place) const {
    const auto next = std::upper_bound(sources_.begin(), sources_.end(), place,
                                       [](std::uint32_t p, const Source& source) { return p < source.first; });
    return *(next - 1);
  }
  void forget(std::uint32_t place) {
    ++forgotten_;
    const Source& source = source_of(place);
    undo(source.residual, place - source.first);
    undo(source.momentum, place - source.first);
  }

  /// The sum at a place, before the pass that forms all of them.
  float sum_at(const Source& source, std::size_t i) const {
    const auto* from = static_cast<const std::byte*>(source.data) + i * element_bytes(source.type);
    float x = 0;
    host::widen(host::Level::baseline, source.type, from, 1, &x);
    if (source.momentum)
      host::ApplyMomentum::one(x, source.momentum.before[i], momentum_.factor, momentum_.nesterov, x);
    return source.residual ? x + source.residual.before[i] : x;
  }
  std::uint32_t sample_threshold(const SampleSeed& seed) {
    const Sample sample(elements_, seed);
    sample_.clear();
    auto source = sources_.begin();
    for (std::size_t i = 0; i < sample.count; ++i) {
      const std::size_t place = sample.place(i);
      while (place >= source->first + source->count) ++source;
      sample_.push_back(sum_at(*source, place - source->first));
    }
    const std::uint32_t key = largest_.key_of(sample_.data(), sample_.size(), sample.expected(count_));
    return std::clamp<std::uint32_t>(key, 1, kNonFinite);
  }

  host::Level level_;
  std::span<const Source> sources_;
  MomentumCorrection momentum_;
  std::size_t count_ = 0;
  std::size_t elements_ = 0;
  std::size_t room_ = 0;
  std::size_t found_ = 0;
  std::size_t chosen_ = 0;
  std::uint64_t forgotten_ = 0;
  int passes_ = 0;
  std::uint32_t now_ = 1;            ///< threshold in force
  std::uint32_t looked_for_ = 1;     ///< the pass found everything from here on, unless it was cut
  std::uint32_t taken_ = kAboveAll;  ///< what was found from here on left zeros in the residuals
  std::uint32_t threshold_ = 0;      ///< for the next time; 0: unknown
  std::uint32_t expected_ = 0;       ///< k-th magnitude of the next time
  std::uint32_t margin_ = kFirstMargin;
  std::uint32_t last_least_ = 0;
  std::int64_t drift_ = 0;  ///< how much the k-th magnitude changes from step to step
  bool adding_only_ = false;
  bool cut_ = false;  ///< cut down to `count_` during the pass
  std::vector<std::uint32_t> places_;
  std::vector<float> values_;
  std::vector<float> tile_;
  std::vector<float> sample_;
  Largest largest_;
};

}  // namespace tightwire::sparse
