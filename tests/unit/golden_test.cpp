// The bytes of every format, kept in tests/golden/: what they are today they must be tomorrow, and in another
// implementation. TIGHTWIRE_WRITE_GOLDEN=1 writes files that are missing, and never one that is there.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/sparse/section.hpp>
#include <tightwire/testing/calls.hpp>

namespace tightwire::testing::golden_test {
namespace {

const std::filesystem::path kFolder = TIGHTWIRE_GOLDEN;

/// 333 elements of mixed size: three blocks of zeros, of equal elements and of one outlier among them, and a short last
/// block. Every one is a whole number times a power of two.
std::vector<float> input() {
  std::vector<float> x(333);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto whole = static_cast<float>(static_cast<int>(i * 7919 % 1009) - 504);
    x[i] = std::ldexp(whole, static_cast<int>(i / 32 % 9) * 3 - 20);
    if (i / 16 == 5) x[i] = 0.0f;
    if (i / 16 == 7) x[i] = -0.375f;
    if (i == 150) x[i] = 4096.0f;
  }
  return x;
}

std::vector<std::byte> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}
/// The bytes of a file of that name, which is written first if it is missing and that was asked for.
void expect_golden(const std::string& name, std::span<const std::byte> bytes) {
  const std::filesystem::path path = kFolder / name;
  if (!std::filesystem::exists(path) && std::getenv("TIGHTWIRE_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << name << " is missing: TIGHTWIRE_WRITE_GOLDEN=1 writes it";
  EXPECT_TRUE(same_bytes(bytes, read(path))) << name;
}
std::string file_name(std::string spec) {
  for (char& letter : spec)
    if (letter == ':' || letter == '=' || letter == ',' || letter == '+') letter = '_';
  return spec;
}

TEST(Golden, Input) { expect_golden("input.f32", as_bytes(input())); }

TEST(Golden, EveryCodecEncodesAndDecodesTheSameBytesAsEver) {
  std::vector<std::string> specs;
  for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
  for (const char* more : {"int4:block=32", "nvfp4:block=64", "hadamard:32+int4:block=32", "hadamard:256,seed=7+int8"})
    specs.emplace_back(more);
  const std::vector<float> x = input();
  for (const std::string& spec : specs) {
    const auto coder = parse_codec(spec).coder(ElementType::f32);
    const std::string name = file_name(coder->spec());
    const EncodeOutput encoded = encode(*coder, ElementType::f32, x);
    ASSERT_NO_FATAL_FAILURE(expect_golden(name + ".wire", encoded.wire));
    ASSERT_NO_FATAL_FAILURE(expect_golden(name + ".values.f32", as_bytes(decode(*coder, encoded.wire, x.size()))));
  }
}

TEST(Golden, StochasticRounding) {
  const std::vector<float> x = input();
  const Noise noise{.seed = 0x0123456789abcdefu, .use = 3, .parameter = 5, .stream = 2, .first = 256};
  for (const char* spec : {"int8", "int4", "int3-affine", "fp8-e4m3", "mxfp4", "nvfp4", "ternary"}) {
    const auto coder = parse_codec(spec).coder(ElementType::f32);
    expect_golden("stochastic_" + file_name(coder->spec()) + ".wire",
                  encode(*coder, ElementType::f32, x, std::nullopt, &noise).wire);
  }
}

/// No file is there for a codec that is not.
TEST(Golden, NoFileIsLeftOver) {
  // README.md, input.f32, decode.py, encode.py; codecs and more specifications; stochastic ones; sections and their
  // entries.
  std::size_t expected = 4 + 2 * (builtin_codecs().size() + 4) + 7 + 2 * 6;
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, expected);
}

/// Entries among 1,000 elements, and the section that they make.
TEST(Golden, SectionsOfSparseFrames) {
  struct Case {
    const char* form;
    unsigned below;  ///< element i has an entry where i * 7919 % 1009 is below
    sparse::IndexForm expected;
  };
  constexpr std::size_t kElements = 1000;
  for (const auto& [form, below, expected] :
       {Case{"gaps", 40, sparse::IndexForm::gaps}, Case{"bitmap", 400, sparse::IndexForm::bitmap},
        Case{"all", 1009, sparse::IndexForm::all}})
    for (const char* values : {"dense", "int8"}) {
      const auto coder = parse_codec(values).coder(ElementType::f32);
      sparse::Entries entries;
      for (std::uint32_t i = 0; i < kElements; ++i) {
        const unsigned whole = i * 7919 % 1009;
        if (whole >= below) continue;
        entries.indices.push_back(i);
        entries.values.push_back(std::ldexp(static_cast<float>(whole) - 20, static_cast<int>(i % 7) - 10));
      }
      const sparse::SectionSize size = sparse::section_size(*coder, entries.indices, kElements);
      ASSERT_EQ(size.form, expected);
      std::vector<std::byte> wire(size.bytes);
      std::byte* const at = sparse::write_head(size.form, entries.indices, kElements, wire.data());
      coder->encode(ElementType::f32, {entries.values.data(), {}, entries.size(), at});
      std::span<const std::byte> rest(wire);
      sparse::Entries read;
      sparse::read_section(*coder, rest, kElements, read);
      ASSERT_EQ(read.indices, entries.indices);
      std::vector<std::byte> both(8 * read.size());
      std::memcpy(both.data(), read.indices.data(), 4 * read.size());
      std::memcpy(both.data() + 4 * read.size(), read.values.data(), 4 * read.size());
      const std::string name = std::string("section_") + form + "_" + values;
      expect_golden(name + ".wire", wire);
      expect_golden(name + ".entries", both);
    }
}

}  // namespace
}  // namespace tightwire::testing::golden_test
