#include "data.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <zlib.h>

namespace quickstart {
namespace {

/// A gzipped IDX file: a magic number with type and number of dimensions, the extents (big-endian), then the bytes.
class IdxFile {
 public:
  explicit IdxFile(std::filesystem::path path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb"), &gzclose) {
    if (!file_)
      throw std::runtime_error(path_.string() + " cannot be read. It is part of Fashion-MNIST: " +
                               "apt-get install dataset-fashion-mnist, or give its directory with --data.");
  }

  /// The payload; the file must have exactly these extents.
  std::vector<std::uint8_t> read(std::initializer_list<std::size_t> extents) {
    constexpr std::uint32_t kUnsignedBytes = 0x0800;
    expect("magic number", kUnsignedBytes | static_cast<std::uint32_t>(extents.size()));
    std::size_t bytes = 1;
    for (const std::size_t extent : extents) {
      expect("extent", static_cast<std::uint32_t>(extent));
      bytes *= extent;
    }
    std::vector<std::uint8_t> payload(bytes);
    read_exactly(payload);
    std::uint8_t beyond;
    if (gzread(file_.get(), &beyond, 1) != 0)
      throw std::runtime_error(path_.string() + " is longer than its header says");
    return payload;
  }

 private:
  void expect(std::string_view what, std::uint32_t expected) {
    std::array<std::uint8_t, 4> field{};
    read_exactly(field);
    std::uint32_t value = 0;
    for (const std::uint8_t byte : field) value = value << 8 | byte;
    if (value != expected)
      throw std::runtime_error(path_.string() + ": " + std::string(what) + " is " + std::to_string(value) +
                               ", expected " + std::to_string(expected));
  }

  void read_exactly(std::span<std::uint8_t> bytes) {
    const int got = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
    if (got < 0 || static_cast<std::size_t>(got) != bytes.size())
      throw std::runtime_error(path_.string() + " is damaged or ends early: wanted " + std::to_string(bytes.size()) +
                               " bytes, got " + std::to_string(got));
  }

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

LabelledImages load(const std::filesystem::path& directory, const std::string& prefix, std::size_t count) {
  LabelledImages set;
  set.pixels = IdxFile(directory / (prefix + "-images-idx3-ubyte.gz")).read({count, kImageSide, kImageSide});
  const std::filesystem::path labels = directory / (prefix + "-labels-idx1-ubyte.gz");
  set.labels = IdxFile(labels).read({count});
  if (std::ranges::max(set.labels) >= kClasses)
    throw std::runtime_error(labels.string() + ": a label is " + std::to_string(std::ranges::max(set.labels)) +
                             ", expected less than " + std::to_string(kClasses));
  return set;
}

}  // namespace

FashionMnist load_fashion_mnist(const std::filesystem::path& directory) {
  return {load(directory, "train", 60'000), load(directory, "t10k", 10'000)};
}

}  // namespace quickstart
