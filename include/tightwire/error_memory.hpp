#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// The residuals of a Session, in regions (one per parameter for the sender's, one per bucket for the owner's), each a
/// row of fp32 elements that starts at zero.
///
/// A step is a transaction. With rollback every region exists twice: the first use in a step reads the committed copy
/// and writes the other, further uses go on in the other; `commit` swaps what was used, `rollback` forgets it. Both
/// cost nothing but a flag per region. Without rollback there is one copy, updated in place: half the memory, and about
/// a quarter less traffic.
class ErrorMemory {
 public:
  using Region = std::size_t;

  /// Bytes of one copy up to which residuals may still be in cache at the next step. Above them a second copy is
  /// written past the caches.
  static constexpr std::size_t kLargestCached = std::size_t{4} << 20;

  /// Adds a region before `allocate`.
  Region add(std::size_t count) {
    if (count != 0) elements_ += kSkew;
    regions_.push_back({elements_, count});
    elements_ += (count + 15) / 16 * 16;
    return regions_.size() - 1;
  }

  void allocate(bool rollback) {
    memory_ = Workspace(lay_out(rollback));
    base_ = reinterpret_cast<float*>(memory_.data());
  }
  /// In place of `allocate`, for memory that is elsewhere, as on a device: what it takes in bytes, then where it is.
  /// That memory is zeros at first; its owner keeps it.
  std::size_t lay_out(bool rollback) {
    rollback_ = rollback;
    if (elements_ != 0) elements_ = (elements_ + kPage - 1) / kPage * kPage + kSkew;
    past_cache_ = rollback && elements_ * sizeof(float) > kLargestCached;
    bytes_ = elements_ * sizeof(float) * (rollback ? 2 : 1);
    return bytes_;
  }
  void place(void* memory) { base_ = static_cast<float*>(memory); }

  bool can_roll_back() const { return rollback_; }
  std::size_t bytes() const { return bytes_; }

  /// The region for use in the current step.
  Residual open(Region region) {
    Entry& entry = regions_[region];
    if (entry.count == 0) return {};
    if (!rollback_) return {copy(entry, 0), copy(entry, 0)};
    float* committed = copy(entry, entry.swapped ? 1 : 0);
    float* tentative = copy(entry, entry.swapped ? 0 : 1);
    // A second use in the same step updates in place.
    const Residual residual{entry.used ? tentative : committed, tentative, past_cache_ && !entry.used};
    entry.used = true;
    return residual;
  }

  void commit() noexcept {
    for (Entry& entry : regions_) {
      if (rollback_ && entry.used) entry.swapped = !entry.swapped;
      entry.used = false;
    }
  }
  void rollback() noexcept {
    for (Entry& entry : regions_) entry.used = false;
  }

  /// Multiplies what has been committed; between steps.
  void scale(float factor) noexcept {
    for (Region region = 0; region < regions_.size(); ++region)
      for (float& element : restore(region)) element *= factor;
  }

  /// What has been committed so far, to be replaced; between steps.
  std::span<float> restore(Region region) {
    const Entry& entry = regions_[region];
    return {copy(entry, rollback_ && entry.swapped ? 1 : 0), entry.count};
  }
  /// What has been committed so far.
  std::span<const float> committed(Region region) const {
    const Entry& entry = regions_[region];
    return {copy(entry, rollback_ && entry.swapped ? 1 : 0), entry.count};
  }

 private:
  /// Keeps rows from starting on the same place of a page as each other and as page-aligned gradients: loops that read
  /// and write several such rows at once miss the caches, and the open rows of the memory, half as fast again.
  static constexpr std::size_t kSkew = 17 * 16;
  static constexpr std::size_t kPage = 4096 / sizeof(float);

  struct Entry {
    std::size_t at;
    std::size_t count;
    bool swapped = false;
    bool used = false;
  };

  float* copy(const Entry& entry, std::size_t which) const { return base_ + which * elements_ + entry.at; }

  std::vector<Entry> regions_;
  std::size_t elements_ = 0;
  bool rollback_ = false;
  bool past_cache_ = false;
  std::size_t bytes_ = 0;
  float* base_ = nullptr;
  Workspace memory_;  // unless it is elsewhere
};

}  // namespace tightwire
