#pragma once
#include <sys/types.h>

namespace tightwire::shm {

/// Wakes threads of another rank that sleep: a pipe, which peers open through /proc like memory files. Not a futex in
/// the memory that is shared, since a thread that waits for other things too, as for a network, can only sleep in poll.
class Bell {
 public:
  Bell() = default;
  /// Throws Error(no_memory) with the reason.
  static Bell create();
  /// That of another process, by its number there. Throws Error(unsupported) with the reason, Error(corrupt) when it is
  /// no pipe.
  static Bell open(pid_t process, int descriptor);
  Bell(Bell&& other) noexcept;
  Bell& operator=(Bell&& other) noexcept;
  ~Bell();

  void ring() const noexcept;
  void silence() const noexcept;
  /// Readable from the first ring on until it is silenced.
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace tightwire::shm
