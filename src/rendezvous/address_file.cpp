#include "address_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <sstream>
#include <utility>

#include <tightwire/error.hpp>

#include "descriptor.hpp"
#include "errno_text.hpp"
#include "proof.hpp"

namespace tightwire::rendezvous {
namespace {

constexpr std::string_view kFirstLine = "tightwire rendezvous 1";
constexpr std::string_view kLastLine = "end";
constexpr std::size_t kMostBytes = 65536;

std::string to_text(const Announcement& announcement) {
  std::string text(kFirstLine);
  text += "\nmachine " + announcement.machine + "\nsecret " + announcement.secret + "\n";
  for (const std::string& address : announcement.loopback) text += "loopback " + address + "\n";
  for (const std::string& address : announcement.addresses) text += "address " + address + "\n";
  return text + std::string(kLastLine) + "\n";
}

std::optional<Announcement> from_text(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return std::nullopt;
  Announcement announcement;
  while (std::getline(lines, line)) {
    if (line == kLastLine) return announcement;
    const auto space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    const std::string name = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (name == "machine") announcement.machine = value;
    if (name == "secret") announcement.secret = value;
    if (name == "loopback") announcement.loopback.push_back(value);
    if (name == "address") announcement.addresses.push_back(value);
  }
  return std::nullopt;
}

[[noreturn]] void throw_file_error(const char* what, const std::string& path, int error) {
  throw Error(Errc::transport,
              std::string("rank 0 cannot ") + what + " the rendezvous file '" + path + "': " + errno_text(error));
}

void write_whole(const std::string& path, const std::string& text) {
  const Descriptor file = Descriptor::make(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR); });
  if (!file) throw_file_error("create", path, errno);
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      const int error = errno;
      ::unlink(path.c_str());
      throw_file_error("write", path, error);
    }
    if (count > 0) written += static_cast<std::size_t>(count);
  }
}

/// Empty with `problem` set unless it is a plain file of this user.
Descriptor open_own(const std::string& path, std::string& problem) {
  Descriptor file =
      Descriptor::make([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (!file) {
    problem = "rendezvous file '" + path + "': " + errno_text(errno);
    return file;
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    problem = "rendezvous file '" + path + "' is no plain file";
    return {};
  }
  if (status.st_uid != ::geteuid()) {
    problem = "rendezvous file '" + path + "' belongs to user " + std::to_string(status.st_uid) + ", not to user " +
              std::to_string(::geteuid());
    return {};
  }
  return file;
}

}  // namespace

std::optional<Announcement> read_announcement(const std::string& path, std::string& problem) {
  const Descriptor file = open_own(path, problem);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < kMostBytes) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count == 0) break;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      problem = "rendezvous file '" + path + "': " + errno_text(errno);
      return std::nullopt;
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  auto announcement = from_text(text);
  if (!announcement) problem = "rendezvous file '" + path + "' is not complete, or not a rendezvous file";
  return announcement;
}

AddressFile::AddressFile(AddressFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), secret_(std::move(other.secret_)) {}

AddressFile& AddressFile::operator=(AddressFile&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    secret_ = std::move(other.secret_);
  }
  return *this;
}

std::optional<AddressFile> AddressFile::write(const std::string& path, const Announcement& announcement, bool replace) {
  const std::string draft = path + "." + to_hex(random_bytes(8));
  write_whole(draft, to_text(announcement));
  // link() refuses to replace, rename() replaces. Some file systems have no link().
  int error = !replace && ::link(draft.c_str(), path.c_str()) != 0 ? errno : 0;
  if (error == EEXIST) {
    ::unlink(draft.c_str());
    return std::nullopt;
  }
  if (replace || error != 0) {
    error = ::rename(draft.c_str(), path.c_str()) != 0 ? errno : 0;
  }
  ::unlink(draft.c_str());
  if (error != 0) throw_file_error("put in place", path, error);
  return AddressFile(path, announcement.secret);
}

void AddressFile::remove() noexcept {
  if (path_.empty()) return;
  const std::string path = std::exchange(path_, {});
  try {
    std::string problem;
    const auto present = read_announcement(path, problem);
    if (present && present->secret == secret_) ::unlink(path.c_str());
  } catch (const std::exception&) {
    // Out of memory: the file stays, and the next job waits it out.
  }
}

}  // namespace tightwire::rendezvous
