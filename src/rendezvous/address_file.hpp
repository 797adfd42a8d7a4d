#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tightwire::rendezvous {

/// What rank 0 writes down for the others.
struct Announcement {
  std::string machine;                 ///< see machine_name()
  std::string secret;                  ///< random; who cannot read the file cannot join
  std::vector<std::string> loopback;   ///< addresses for processes on the same machine
  std::vector<std::string> addresses;  ///< addresses for all others
};

/// Reads the file. Empty when it is not there, not ours, or not complete; then `problem` says which.
std::optional<Announcement> read_announcement(const std::string& path, std::string& problem);

/// The file while it is there for others to read. Goes with the object, unless another rank 0 has replaced it.
class AddressFile {
 public:
  AddressFile() = default;
  AddressFile(AddressFile&& other) noexcept;
  AddressFile& operator=(AddressFile&& other) noexcept;
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;
  ~AddressFile() { remove(); }

  /// Appears at once and complete, readable only to this user. Empty when a file is there already and `replace` is
  /// false. Throws Error(transport) with path and errno.
  static std::optional<AddressFile> write(const std::string& path, const Announcement& announcement, bool replace);
  void remove() noexcept;

 private:
  AddressFile(std::string path, std::string secret) : path_(std::move(path)), secret_(std::move(secret)) {}

  std::string path_;
  std::string secret_;
};

}  // namespace tightwire::rendezvous
