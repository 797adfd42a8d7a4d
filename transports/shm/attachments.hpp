#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory_file.hpp"

namespace tightwire::shm {

/// Memory of the program whose pages are those of our memory file, so that peers see it too.
class Attachments {
 public:
  /// Of the file from `begin` on.
  Attachments(const MemoryFile& file, std::size_t begin) : file_(file), begin_(begin) {}
  Attachments(const Attachments&) = delete;
  Attachments& operator=(const Attachments&) = delete;
  /// What is still attached stays where it is: whoever has it may be gone.
  ~Attachments() = default;

  /// Puts pages of the file under whole pages of memory; contents stay. Does nothing where the file has no room left or
  /// the memory holds no whole page: its messages then take the way of all other memory. Throws Error(no_memory).
  void attach(std::span<std::byte> memory);
  /// Puts pages of our own there again; contents stay. `forget`: peers do not use the file's pages any more.
  void detach(std::span<std::byte> memory, bool forget) noexcept;
  /// Where in the file some bytes lie.
  std::optional<std::uint64_t> offset_of(std::span<const std::byte> bytes) const noexcept;

 private:
  struct Attachment {
    std::span<std::byte> asked;  ///< as `attach` was called
    std::span<std::byte> pages;
    std::size_t offset;  ///< in the file
  };

  struct Range {
    std::size_t begin, end;
  };

  std::optional<std::size_t> room_for(std::span<std::byte> pages) const;
  bool put_own_pages(std::span<std::byte> pages) noexcept;

  const MemoryFile& file_;
  std::size_t begin_;
  std::vector<Attachment> attachments_;  ///< by address
  std::vector<Range> lost_;              ///< of the file, which peers may read yet
};

}  // namespace tightwire::shm
