#include "descriptor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

namespace tightwire::rendezvous {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> open;
  std::atomic<unsigned> generation{0};
};

Registry& registry();

void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  Registry& all = registry();
  for (const int descriptor : all.open) ::close(descriptor);
  all.open.clear();
  all.generation.fetch_add(1, std::memory_order_relaxed);
  all.mutex.unlock();
}

// Never destroyed: descriptors may be closed by destructors of other static objects.
Registry& registry() {
  static Registry* const all = [] {
    auto* made = new Registry;
    ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return *all;
}

}  // namespace

std::mutex& Descriptor::registry_mutex() { return registry().mutex; }

int Descriptor::note(int value) {
  if (value < 0) return value;
  const int saved = errno;
  try {
    registry().open.push_back(value);
  } catch (...) {
    ::close(value);
    throw;
  }
  errno = saved;
  return value;
}

Descriptor::Descriptor(int value) : value_(value), generation_(fork_generation()) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    value_ = std::exchange(other.value_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Descriptor::reset() noexcept {
  if (value_ < 0) return;
  const int value = std::exchange(value_, -1);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (generation_ != all.generation.load(std::memory_order_relaxed)) return;  // closed when the child was made
  const auto at = std::find(all.open.begin(), all.open.end(), value);
  if (at != all.open.end()) {
    *at = all.open.back();
    all.open.pop_back();
  }
  ::close(value);
}

unsigned fork_generation() noexcept { return registry().generation.load(std::memory_order_relaxed); }

}  // namespace tightwire::rendezvous
