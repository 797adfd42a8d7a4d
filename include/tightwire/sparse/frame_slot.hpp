#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include <tightwire/frame.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire::sparse {

/// Memory for one frame whose size is not known beforehand. Starts with a place in memory of somebody else's and takes
/// memory of its own when a frame does not fit, half as large again, so that it seldom happens twice.
class FrameSlot {
 public:
  FrameSlot(Transport& transport, std::byte* at, std::size_t capacity)
      : transport_(&transport), at_(at), capacity_(capacity) {}
  FrameSlot(FrameSlot&& other) noexcept
      : transport_(other.transport_),
        at_(other.at_),
        capacity_(other.capacity_),
        own_(std::exchange(other.own_, Workspace{})) {}
  FrameSlot(const FrameSlot&) = delete;
  FrameSlot& operator=(const FrameSlot&) = delete;
  FrameSlot& operator=(FrameSlot&&) = delete;
  ~FrameSlot() {
    if (own_.size() != 0) transport_->detach(own_.pages());
  }

  std::byte* data() const { return at_; }
  std::byte* payload() const { return at_ + sizeof(FrameHeader); }

  /// Makes room for a frame of so many bytes, of which the first `keep` stay. Not while the frame is on its way.
  void reserve(std::size_t bytes, std::size_t keep = 0) {
    if (bytes <= capacity_) return;
    Workspace larger(bytes + bytes / 2);
    transport_->attach_pages(larger.pages());
    if (keep != 0) std::memcpy(larger.data(), at_, keep);
    if (own_.size() != 0) transport_->detach(own_.pages());
    own_ = std::move(larger);
    at_ = own_.data();
    capacity_ = own_.size();
  }

 private:
  Transport* transport_;
  std::byte* at_;
  std::size_t capacity_;
  Workspace own_;
};

}  // namespace tightwire::sparse
