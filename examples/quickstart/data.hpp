#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace quickstart {

constexpr std::size_t kImageSide = 28;
constexpr std::size_t kImagePixels = kImageSide * kImageSide;
constexpr std::size_t kClasses = 10;

/// Grey images with the class of each.
struct LabelledImages {
  std::vector<std::uint8_t> pixels;  ///< [image][row][column], 0 is black
  std::vector<std::uint8_t> labels;  ///< [image], below kClasses

  std::size_t size() const { return labels.size(); }
  std::span<const std::uint8_t> image(std::size_t index) const {
    return std::span(pixels).subspan(index * kImagePixels, kImagePixels);
  }
};

/// 60,000 images to learn from and 10,000 to test with: pieces of clothing of ten kinds.
struct FashionMnist {
  LabelledImages training;
  LabelledImages test;
};

/// Where Debian's package dataset-fashion-mnist puts it.
inline const std::filesystem::path kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

/// Reads the four gzipped IDX files. Throws std::runtime_error that names the file and what is wrong with it, and how
/// to get the data when it is not there.
FashionMnist load_fashion_mnist(const std::filesystem::path& directory = kFashionMnistDirectory);

}  // namespace quickstart
