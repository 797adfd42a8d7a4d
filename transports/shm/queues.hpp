#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace tightwire::shm {

/// Elements in order of arrival, found by tag: the oldest of a tag first. Linked through `Element::next_in_queue`; of
/// each, `tag_of(element)` tells the tag.
template <class Element>
class TagQueue {
 public:
  void push(Element& element) noexcept {
    Queue& queue = queue_of(tag_of(element));
    element.next_in_queue = nullptr;
    *(queue.first == nullptr ? &queue.first : &queue.last->next_in_queue) = &element;
    queue.last = &element;
  }
  /// Takes the oldest one of a tag out; null where there is none.
  Element* take(std::uint64_t tag) noexcept {
    Queue& queue = queue_of(tag);
    Element* before = nullptr;
    for (Element* each = queue.first; each != nullptr; before = each, each = each->next_in_queue) {
      if (tag_of(*each) != tag) continue;
      (before == nullptr ? queue.first : before->next_in_queue) = each->next_in_queue;
      if (queue.last == each) queue.last = before;
      return each;
    }
    return nullptr;
  }

 private:
  static constexpr unsigned kBits = 5;
  struct Queue {
    Element* first = nullptr;
    Element* last = nullptr;
  };
  Queue& queue_of(std::uint64_t tag) noexcept { return queues_[tag * 0x9E3779B97F4A7C15u >> (64 - kBits)]; }

  std::array<Queue, std::size_t{1} << kBits> queues_{};
};

/// Elements in order, linked through `Element::next_in_queue`.
template <class Element>
class Fifo {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  Element& front() const noexcept { return *first_; }
  void push(Element& element) noexcept {
    element.next_in_queue = nullptr;
    *(first_ == nullptr ? &first_ : &last_->next_in_queue) = &element;
    last_ = &element;
  }
  Element& pop() noexcept {
    Element& element = *first_;
    first_ = element.next_in_queue;
    return element;
  }

 private:
  Element* first_ = nullptr;
  Element* last_ = nullptr;
};

/// Elements that stay where they are and are used again, linked through `Element::next_in_queue` while they are free.
/// It allocates only when more are in use than ever before.
template <class Element>
class Pool {
 public:
  Element& take() {
    if (free_ == nullptr) return all_.emplace_back();
    return *std::exchange(free_, free_->next_in_queue);
  }
  void give_back(Element& element) noexcept { element.next_in_queue = std::exchange(free_, &element); }
  /// In use or not.
  std::deque<Element>& all() noexcept { return all_; }

 private:
  std::deque<Element> all_;
  Element* free_ = nullptr;
};

}  // namespace tightwire::shm
