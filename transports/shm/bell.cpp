#include "bell.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include <tightwire/error.hpp>

#include "memory_file.hpp"

namespace tightwire::shm {
namespace {

/// For both ways, so that a ring is no SIGPIPE where its owner has just died, and so that it has one number.
int open_both_ways(const std::string& path) { return ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC); }

std::string path_of(const std::string& process, int descriptor) {
  return "/proc/" + process + "/fd/" + std::to_string(descriptor);
}

}  // namespace

Bell::Bell(Bell&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
Bell& Bell::operator=(Bell&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}
Bell::~Bell() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Bell Bell::create() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(Errc::no_memory, "shm: a pipe: " + errno_words(errno));
  Bell bell;
  bell.descriptor_ = open_both_ways(path_of("self", ends[0]));
  const int reason = errno;
  for (const int end : ends) ::close(end);
  if (bell.descriptor_ < 0) throw Error(Errc::no_memory, "shm: opening a pipe: " + errno_words(reason));
  return bell;
}

Bell Bell::open(pid_t process, int descriptor) {
  const std::string path = path_of(std::to_string(process), descriptor);
  Bell bell;
  bell.descriptor_ = open_both_ways(path);
  if (bell.descriptor_ < 0) throw Error(Errc::unsupported, "shm: opening " + path + ": " + errno_words(errno));
  struct stat status {};
  if (fstat(bell.descriptor_, &status) != 0 || !S_ISFIFO(status.st_mode))
    throw Error(Errc::corrupt, "shm: " + path + " is no pipe");
  return bell;
}

void Bell::ring() const noexcept {
  // A full pipe is readable all the same.
  const std::byte any{1};
  (void)!write(descriptor_, &any, 1);
}

void Bell::silence() const noexcept {
  std::array<std::byte, 4096> ignored;
  while (read(descriptor_, ignored.data(), ignored.size()) == static_cast<ssize_t>(ignored.size())) {
  }
}

}  // namespace tightwire::shm
