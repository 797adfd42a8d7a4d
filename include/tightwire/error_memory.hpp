#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tightwire/coder.hpp>
#include <tightwire/element.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// The residuals of a Session, in regions (one per parameter for the sender's, one per bucket for the owner's), each a
/// row of elements of fp32 or bf16 that starts at zero.
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

  explicit ErrorMemory(ElementType type = ElementType::f32) : type_(type) {}
  ElementType type() const { return type_; }

  /// Adds a region before `allocate`.
  Region add(std::size_t count) {
    if (count != 0) copy_bytes_ += kSkew;
    regions_.push_back({copy_bytes_, count});
    copy_bytes_ += (count * element_bytes(type_) + kLine - 1) / kLine * kLine;
    return regions_.size() - 1;
  }

  void allocate(bool rollback) {
    memory_ = Workspace(lay_out(rollback));
    base_ = memory_.data();
  }
  /// In place of `allocate`, for memory that is elsewhere, as on a device: what it takes in bytes, then where it is.
  /// That memory is zeros at first; its owner keeps it.
  std::size_t lay_out(bool rollback) {
    rollback_ = rollback;
    if (copy_bytes_ != 0) copy_bytes_ = (copy_bytes_ + kPage - 1) / kPage * kPage + kSkew;
    past_cache_ = rollback && copy_bytes_ > kLargestCached;
    bytes_ = copy_bytes_ * (rollback ? 2 : 1);
    return bytes_;
  }
  void place(void* memory) { base_ = static_cast<std::byte*>(memory); }

  bool can_roll_back() const { return rollback_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t count(Region region) const { return regions_[region].count; }

  /// The region for use in the current step.
  Residual open(Region region) {
    Entry& entry = regions_[region];
    if (entry.count == 0) return {};
    if (!rollback_) return residual(copy(entry, 0), copy(entry, 0), false);
    std::byte* const committed = copy(entry, entry.swapped ? 1 : 0);
    std::byte* const tentative = copy(entry, entry.swapped ? 0 : 1);
    // A second use in the same step updates in place.
    const bool again = entry.used;
    entry.used = true;
    return residual(again ? tentative : committed, tentative, past_cache_ && !again);
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

  /// Multiplies what has been committed; between steps. In bf16 it is rounded to nearest.
  void scale(float factor) {
    for (Region region = 0; region < regions_.size(); ++region)
      change(region, [factor](std::span<float> elements) {
        for (float& element : elements) element *= factor;
      });
  }

  /// The bytes of what has been committed so far.
  std::span<const std::byte> committed_bytes(Region region) const {
    const Entry& entry = regions_[region];
    return {committed_copy(entry), entry.count * element_bytes(type_)};
  }
  /// What has been committed so far, in fp32: of so many elements at most, from the first on.
  std::vector<float> committed(Region region, std::size_t most = static_cast<std::size_t>(-1)) const {
    const std::span<const std::byte> bytes = committed_bytes(region);
    std::vector<float> elements(std::min(most, regions_[region].count));
    if (type_ == ElementType::f32) {
      if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(float));
      return elements;
    }
    const auto* const halves = reinterpret_cast<const std::uint16_t*>(bytes.data());
    std::transform(halves, halves + elements.size(), elements.begin(),
                   [](std::uint16_t bits) { return detail::from_bf16(bits); });
    return elements;
  }
  /// Lets `f` change what has been committed so far, in fp32; between steps. In bf16 it is rounded to nearest.
  template <class F>
  void change(Region region, const F& f) {
    change(region, 0, count(region), f);
  }
  /// The same of `count` elements from `begin` on.
  template <class F>
  void change(Region region, std::size_t begin, std::size_t count, const F& f) {
    std::byte* const at = committed_copy(regions_[region]) + begin * element_bytes(type_);
    if (type_ == ElementType::f32) return f(std::span(reinterpret_cast<float*>(at), count));
    auto* const halves = reinterpret_cast<std::uint16_t*>(at);
    std::vector<float> elements(count);
    std::transform(halves, halves + count, elements.begin(),
                   [](std::uint16_t bits) { return detail::from_bf16(bits); });
    f(std::span(elements));
    std::transform(elements.begin(), elements.end(), halves, detail::nearest_residual);
  }

 private:
  static constexpr std::size_t kLine = 64;  // of a cache
  /// Keeps rows from starting on the same place of a page as each other and as page-aligned gradients: loops that read
  /// and write several such rows at once miss the caches, and the open rows of the memory, half as fast again.
  static constexpr std::size_t kSkew = 17 * kLine;
  static constexpr std::size_t kPage = 4096;

  struct Entry {
    std::size_t at;     ///< in bytes
    std::size_t count;  ///< elements
    bool swapped = false;
    bool used = false;
  };

  std::byte* copy(const Entry& entry, std::size_t which) const { return base_ + which * copy_bytes_ + entry.at; }
  std::byte* committed_copy(const Entry& entry) const { return copy(entry, rollback_ && entry.swapped ? 1 : 0); }
  Residual residual(std::byte* before, std::byte* after, bool past_cache) const {
    Residual residual{.past_cache = past_cache};
    if (type_ == ElementType::f32) {
      residual.before = reinterpret_cast<const float*>(before);
      residual.after = reinterpret_cast<float*>(after);
    } else {
      residual.bf16.before = reinterpret_cast<const std::uint16_t*>(before);
      residual.bf16.after = reinterpret_cast<std::uint16_t*>(after);
    }
    return residual;
  }

  ElementType type_;
  std::vector<Entry> regions_;
  std::size_t copy_bytes_ = 0;
  bool rollback_ = false;
  bool past_cache_ = false;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  Workspace memory_;  // unless it is elsewhere
};

}  // namespace tightwire
