#include "attachments.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <tightwire/error.hpp>

#include "segment.hpp"

namespace tightwire::shm {
namespace {

/// Since Linux 6.1. Makes huge pages of memory files even where the system makes none by itself.
constexpr int kMadviseCollapse = 25;

std::uintptr_t address(const std::byte* at) noexcept { return reinterpret_cast<std::uintptr_t>(at); }

std::span<std::byte> whole_pages(std::span<std::byte> memory) noexcept {
  const std::size_t before = (kPage - address(memory.data()) % kPage) % kPage;
  if (memory.size() < before + kPage) return {};
  return memory.subspan(before, (memory.size() - before) / kPage * kPage);
}

void write_to(const MemoryFile& file, std::span<const std::byte> bytes, std::size_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(file.descriptor(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw Error(Errc::no_memory,
                  "shm: " + std::to_string(bytes.size()) + " bytes into shared memory: " + errno_words(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::size_t>(count);
  }
}

}  // namespace

std::optional<std::size_t> Attachments::room_for(std::span<std::byte> pages) const {
  // Like the memory it lies under, in relation to huge pages.
  const auto fit = [&](std::size_t from) {
    const std::size_t wanted = address(pages.data()) % kHugePage;
    return from + (wanted + kHugePage - from % kHugePage) % kHugePage;
  };
  std::vector<Range> used = lost_;
  for (const Attachment& each : attachments_) used.push_back({each.offset, each.offset + each.pages.size()});
  std::sort(used.begin(), used.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t at = fit(begin_);
  for (const auto& [from, to] : used)
    if (at < to && from < at + pages.size()) at = fit(to);
  if (at + pages.size() > file_.bytes()) return std::nullopt;
  return at;
}

void Attachments::attach(std::span<std::byte> memory) {
  const std::span<std::byte> pages = whole_pages(memory);
  if (pages.empty()) return;
  const std::optional<std::size_t> offset = room_for(pages);
  if (!offset) return;
  const auto place = std::upper_bound(
      attachments_.begin(), attachments_.end(), pages.data(),
      [](const std::byte* at, const Attachment& each) { return address(at) < address(each.pages.data()); });
  lost_.reserve(lost_.size() + attachments_.size() + 1);  // `detach` must not fail
  attachments_.insert(place, {.asked = memory, .pages = pages, .offset = *offset});
  const auto forget = [&] {
    std::erase_if(attachments_, [&](const Attachment& each) { return each.offset == *offset; });
    file_.release(*offset, pages.size());
  };
  try {
    write_to(file_, pages, *offset);
  } catch (...) {
    forget();
    throw;
  }
  if (mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
           file_.descriptor(), static_cast<off_t>(*offset)) == MAP_FAILED) {
    const int reason = errno;
    forget();
    throw Error(Errc::no_memory, "shm: mapping " + std::to_string(pages.size()) + " bytes: " + errno_words(reason));
  }
  (void)madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
  (void)madvise(pages.data(), pages.size(), kMadviseCollapse);
}

bool Attachments::put_own_pages(std::span<std::byte> pages) noexcept {
  void* own = mmap(nullptr, pages.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return false;
  std::memcpy(own, pages.data(), pages.size());
  // Not by the function, which UCX 1.13 replaces by one that forgets the new address.
  if (syscall(SYS_mremap, own, pages.size(), pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED, pages.data()) != -1)
    return true;
  munmap(own, pages.size());
  return false;
}

void Attachments::detach(std::span<std::byte> memory, bool forget) noexcept {
  const auto found = std::find_if(attachments_.begin(), attachments_.end(), [&](const Attachment& each) {
    return each.asked.data() == memory.data() && each.asked.size() == memory.size();
  });
  if (found == attachments_.end()) return;
  // Without memory for pages of our own the file's stay there.
  if (put_own_pages(found->pages) && forget)
    file_.release(found->offset, found->pages.size());
  else
    lost_.push_back({found->offset, found->offset + found->pages.size()});
  attachments_.erase(found);
}

std::optional<std::uint64_t> Attachments::offset_of(std::span<const std::byte> bytes) const noexcept {
  const auto behind = std::upper_bound(
      attachments_.begin(), attachments_.end(), bytes.data(),
      [](const std::byte* at, const Attachment& each) { return address(at) < address(each.pages.data()); });
  if (behind == attachments_.begin()) return std::nullopt;
  const Attachment& found = *std::prev(behind);
  const std::size_t at = address(bytes.data()) - address(found.pages.data());
  if (at > found.pages.size() || bytes.size() > found.pages.size() - at) return std::nullopt;
  return found.offset + at;
}

}  // namespace tightwire::shm
