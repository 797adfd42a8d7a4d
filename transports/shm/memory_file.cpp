#include "memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <tightwire/error.hpp>

#include "segment.hpp"

namespace tightwire::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
/// Since Linux 6.3, which may warn of files without it, or refuse them (vm.memfd_noexec). Such a file has a seal more.
constexpr unsigned kNoExecSeal = 8;

int create_memory() noexcept {
  const int descriptor = memfd_create("tightwire", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal);
  if (descriptor >= 0 || errno != EINVAL) return descriptor;
  return memfd_create("tightwire", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

}  // namespace

std::string errno_words(int number) { return std::string(std::strerror(number)) + " (" + std::to_string(number) + ")"; }

Mapping::Mapping(Mapping&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}
Mapping::~Mapping() {
  if (memory_.data() != nullptr) munmap(memory_.data(), memory_.size());
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}
MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

MemoryFile MemoryFile::create(std::size_t bytes) {
  MemoryFile file(create_memory(), bytes);
  if (file.descriptor_ < 0) throw Error(Errc::no_memory, "shm: memfd_create: " + errno_words(errno));
  if (ftruncate(file.descriptor_, static_cast<off_t>(bytes)) != 0 || fcntl(file.descriptor_, F_ADD_SEALS, kSeals) != 0)
    throw Error(Errc::no_memory, "shm: shared memory of " + std::to_string(bytes) + " bytes: " + errno_words(errno));
  return file;
}

MemoryFile MemoryFile::open(pid_t process, int descriptor, std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  MemoryFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC), bytes);
  if (file.descriptor_ < 0) throw Error(Errc::unsupported, "shm: opening " + path + ": " + errno_words(errno));
  struct stat status {};
  const int seals = fcntl(file.descriptor_, F_GET_SEALS);
  if (fstat(file.descriptor_, &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes || seals < 0 ||
      (seals & kSeals) != kSeals)
    throw Error(Errc::corrupt, "shm: " + path + " is not sealed memory of " + std::to_string(bytes) + " bytes");
  return file;
}

void MemoryFile::reserve(std::size_t offset, std::size_t bytes) const {
  int failed = 0;
  do failed = fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  while (failed != 0 && errno == EINTR);
  if (failed != 0)
    throw Error(Errc::no_memory, "shm: shared memory of " + std::to_string(bytes) + " bytes: " + errno_words(errno));
}

void MemoryFile::release(std::size_t offset, std::size_t bytes) const noexcept {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

Mapping MemoryFile::map(std::size_t offset, std::size_t bytes, bool writable) const {
  // Room for an address that lies to huge pages as the offset does, or the file's huge pages could not be mapped as
  // such.
  void* const room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* at = MAP_FAILED;
  std::size_t before = 0;
  if (room != MAP_FAILED) {
    before = (offset % kHugePage + kHugePage - reinterpret_cast<std::uintptr_t>(room) % kHugePage) % kHugePage;
    at = mmap(static_cast<std::byte*>(room) + before, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
              MAP_SHARED | MAP_NORESERVE | MAP_FIXED, descriptor_, static_cast<off_t>(offset));
  }
  if (at == MAP_FAILED) {
    const int reason = errno;
    if (room != MAP_FAILED) munmap(room, bytes + kHugePage);
    throw Error(Errc::no_memory, "shm: mapping " + std::to_string(bytes) +
                                     " bytes of shared memory: " + errno_words(reason) +
                                     " (is the limit on address space, `ulimit -v`, at least that large, and is "
                                     "not all of it in use, as by many transports at once?)");
  }
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  if (before != 0) munmap(room, before);
  if (pages + before != bytes + kHugePage)
    munmap(static_cast<std::byte*>(at) + pages, bytes + kHugePage - before - pages);
  (void)madvise(at, bytes, MADV_DONTDUMP);
  (void)madvise(at, bytes, MADV_HUGEPAGE);
  return Mapping({static_cast<std::byte*>(at), bytes});
}

}  // namespace tightwire::shm
