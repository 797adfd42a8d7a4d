#pragma once
#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace tightwire::shm {

/// A mapping, ended with its owner.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<std::byte> memory) noexcept : memory_(memory) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const noexcept { return memory_.data(); }

 private:
  std::span<std::byte> memory_;
};

/// Memory without a name that processes share: it is gone with the last of them, however they end. Its size is sealed,
/// so that no peer can cut it off under another that reads it. Pages are there once they were written or reserved.
class MemoryFile {
 public:
  MemoryFile() = default;
  /// Throws Error(no_memory) with the reason.
  static MemoryFile create(std::size_t bytes);
  /// That of another process, by its number there. Throws Error(unsupported) with the reason, Error(corrupt) when it is
  /// not of this size, or lacks a seal.
  static MemoryFile open(pid_t process, int descriptor, std::size_t bytes);
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  int descriptor() const noexcept { return descriptor_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Takes the pages now. Throws Error(no_memory) with the size.
  void reserve(std::size_t offset, std::size_t bytes) const;
  /// Gives them back; their contents are gone.
  void release(std::size_t offset, std::size_t bytes) const noexcept;
  /// Throws Error(no_memory).
  Mapping map(std::size_t offset, std::size_t bytes, bool writable) const;

 private:
  MemoryFile(int descriptor, std::size_t bytes) noexcept : descriptor_(descriptor), bytes_(bytes) {}

  int descriptor_ = -1;
  std::size_t bytes_ = 0;
};

/// "No such process (3)".
std::string errno_words(int number);

}  // namespace tightwire::shm
