#pragma once
#include <mutex>
#include <utility>

namespace tightwire::rendezvous {

/// Owns a file descriptor. Children of fork() get it closed at once: a copy kept by a child would hide the death of
/// this process from its peers.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)), generation_(other.generation_) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }

  /// Owns what `open` returns; a negative value makes an empty Descriptor and leaves errno as it is. No fork() of
  /// another thread can come between the opening and the taking note of it.
  template <class Open>
  static Descriptor make(Open&& open) {
    const std::lock_guard lock(registry_mutex());
    return Descriptor(note(open()));
  }

  int get() const noexcept { return value_; }
  explicit operator bool() const noexcept { return value_ >= 0; }
  void reset() noexcept;

 private:
  explicit Descriptor(int value);
  static std::mutex& registry_mutex();
  static int note(int value);

  int value_ = -1;
  unsigned generation_ = 0;
};

/// Grows by one in a child of fork(): what was made under another number belongs to the parent.
unsigned fork_generation() noexcept;

}  // namespace tightwire::rendezvous
