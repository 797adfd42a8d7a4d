// Indices and sections of sparse frames: what is written is read again, sizes are as said, and any bytes give ascending
// indices in range or an error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <tightwire/codec/integer.hpp>
#include <tightwire/core_codecs.hpp>
#include <tightwire/sparse/section.hpp>
#include <tightwire/testing/data.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::sparse_index_test {
namespace {

using sparse::Entries;
using sparse::IndexForm;
using Indices = std::vector<std::uint32_t>;

Indices drawn(std::size_t count, std::size_t elements, std::uint64_t seed) {
  FastRandom random(seed);
  Indices indices;
  while (indices.size() < count) {
    for (std::size_t i = indices.size(); i < count; ++i)
      indices.push_back(static_cast<std::uint32_t>(random.below(elements)));
    std::sort(indices.begin(), indices.end());
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  }
  return indices;
}

std::size_t bytes_of(IndexForm form, const Indices& indices, std::size_t elements) {
  return form == IndexForm::gaps     ? sparse::gaps_bytes(indices)
         : form == IndexForm::bitmap ? sparse::bitmap_bytes(elements)
                                     : 0;
}

void expect_round_trip(IndexForm form, const Indices& indices, std::size_t elements) {
  const std::size_t bytes = bytes_of(form, indices, elements);
  std::vector<std::byte> wire(bytes + 8, std::byte{0xa5});
  EXPECT_EQ(sparse::write_indices(form, indices, elements, wire.data()), wire.data() + bytes);
  for (std::size_t i = bytes; i < wire.size(); ++i) EXPECT_EQ(wire[i], std::byte{0xa5});
  Indices read(indices.size(), 0xffffffffu);
  std::span<const std::byte> from(wire.data(), bytes);
  ASSERT_TRUE(sparse::read_indices(form, from, elements, read));
  EXPECT_TRUE(from.empty());
  EXPECT_EQ(read, indices);
  for (std::size_t cut = 0; cut < bytes; cut += 1 + bytes / 17) {
    from = {wire.data(), cut};
    EXPECT_FALSE(sparse::read_indices(form, from, elements, read)) << cut << " of " << bytes;
  }
}

TEST(SparseIndices, WhatIsWrittenIsRead) {
  for (const std::size_t elements : {1ul, 2ul, 63ul, 64ul, 65ul, 1000ul, 100'000ul, 4'000'000'000ul})
    for (const std::size_t count : {1ul, 2ul, 63ul, 64ul, 65ul, 129ul, 1000ul}) {
      if (count > elements) continue;
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(elements));
      const Indices indices = drawn(count, elements, count + elements);
      expect_round_trip(IndexForm::gaps, indices, elements);
      if (elements <= 1'000'000) expect_round_trip(IndexForm::bitmap, indices, elements);
      if (count == elements) expect_round_trip(IndexForm::all, indices, elements);
    }
  expect_round_trip(IndexForm::gaps, {0, 4294967294u}, 4294967295u);
}

TEST(SparseIndices, GapsCostLessThanAnIndexOf32Bits) {
  // 1 % of the elements: about log2(100) bits and what the largest gap of 64 takes beyond.
  const Indices indices = drawn(10'000, 1'000'000, 3);
  EXPECT_LT(8.0 * static_cast<double>(sparse::gaps_bytes(indices)), 9.6 * 10'000);
  EXPECT_GT(8.0 * static_cast<double>(sparse::gaps_bytes(indices)), 6.6 * 10'000);
  // A run costs a byte for 64 of them.
  Indices run(6400);
  std::iota(run.begin(), run.end(), 0u);
  EXPECT_EQ(sparse::gaps_bytes(run), 100u);
}

TEST(SparseIndices, OutOfRangeIsRefused) {
  const Indices indices = {3, 10, 99};
  std::vector<std::byte> wire(16);
  for (const IndexForm form : {IndexForm::gaps, IndexForm::bitmap}) {
    sparse::write_indices(form, indices, 100, wire.data());
    Indices read(3);
    std::span<const std::byte> from(wire.data(), bytes_of(form, indices, 100));
    EXPECT_TRUE(sparse::read_indices(form, from, 100, read));
    from = {wire.data(), bytes_of(form, indices, 100)};
    EXPECT_FALSE(sparse::read_indices(form, from, 99, read));
  }
}

Entries entries_of(const Indices& indices, std::uint64_t seed) {
  FastRandom random(seed);
  Entries entries;
  entries.indices = indices;
  for (std::size_t i = 0; i < indices.size(); ++i) entries.values.push_back(random.bell());
  return entries;
}
std::vector<std::byte> section(const Coder& coder, const Entries& entries, std::size_t elements, IndexForm form) {
  std::vector<std::byte> wire(64 + 5 * elements + coder.wire_bytes(entries.size()));
  std::byte* at = sparse::write_head(form, entries.indices, elements, wire.data());
  if (entries.size() != 0)
    coder.encode(ElementType::f32,
                 {.data = entries.values.data(), .residual = {}, .count = entries.size(), .wire = at});
  wire.resize(static_cast<std::size_t>(at - wire.data()) + coder.wire_bytes(entries.size()));
  return wire;
}

TEST(SparseSection, TakesTheFewestBytes) {
  const HostCoder<Dense> fp32;
  const HostCoder<Int8> int8;
  const auto form = [](const Coder& coder, std::size_t count, std::size_t elements) {
    return sparse::section_size(coder, drawn(count, elements, 5), elements).form;
  };
  EXPECT_EQ(form(fp32, 10, 1000), IndexForm::gaps);
  EXPECT_EQ(form(fp32, 500, 1000), IndexForm::bitmap);
  EXPECT_EQ(form(fp32, 990, 1000), IndexForm::all);
  EXPECT_EQ(form(int8, 860, 1000), IndexForm::bitmap);
  EXPECT_EQ(form(int8, 900, 1000), IndexForm::all);
  EXPECT_EQ(form(fp32, 1000, 1000), IndexForm::all);
  for (const std::size_t count : {0ul, 1ul, 10ul, 300ul, 500ul}) {
    const Entries entries = entries_of(drawn(count, 1000, 6), 7);
    const sparse::SectionSize size = sparse::section_size(fp32, entries.indices, 1000);
    EXPECT_EQ(section(fp32, entries, 1000, size.form).size(), size.bytes);
    EXPECT_LE(size.bytes, sparse::largest_section(fp32, 1000));
  }
}

TEST(SparseSection, WhatIsWrittenIsRead) {
  const HostCoder<Dense> fp32;
  for (const IndexForm form : {IndexForm::gaps, IndexForm::bitmap}) {
    for (const std::size_t count : {0ul, 1ul, 100ul}) {
      const Entries entries = entries_of(drawn(count, 500, 1), 2);
      std::vector<std::byte> wire = section(fp32, entries, 500, form);
      wire.push_back(std::byte{7});
      std::span<const std::byte> rest(wire);
      Entries read;
      sparse::read_section(fp32, rest, 500, read);
      EXPECT_EQ(read.indices, entries.indices);
      EXPECT_EQ(read.values, entries.values);
      EXPECT_EQ(rest.size(), 1u);
    }
  }
}

TEST(SparseSection, ErrorsSayWhatIsWrong) {
  const HostCoder<Dense> fp32;
  const auto read = [&](std::vector<std::byte> wire, std::size_t elements) {
    std::span<const std::byte> rest(wire);
    Entries entries;
    sparse::read_section(fp32, rest, elements, entries);
  };
  const Entries entries = entries_of({1, 5, 90}, 2);
  std::vector<std::byte> wire = section(fp32, entries, 100, IndexForm::gaps);
  EXPECT_ERROR(read({}, 100), Errc::corrupt, "ends before it");
  EXPECT_ERROR(read(wire, 2), Errc::corrupt, "claims 3 entries");
  EXPECT_ERROR(read(wire, 90), Errc::corrupt, "out of range");
  EXPECT_ERROR(read({wire.begin(), wire.end() - 1}, 100), Errc::corrupt, "values are cut off");
  wire[7] = std::byte{3};
  EXPECT_ERROR(read(wire, 100), Errc::corrupt, "form 3 is not known");
  wire[7] = std::byte{2};
  EXPECT_ERROR(read(wire, 100), Errc::corrupt, "indices are cut off or out of range");
}

/// Reads what is left of a section when some bytes were changed, from memory of exactly that size, so that a sanitizer
/// sees a byte too far. Returns whether it was accepted.
bool read_mutated(const Coder& coder, const std::vector<std::byte>& valid, std::size_t elements, FastRandom& random,
                  Entries& read) {
  std::size_t size = valid.size();
  if (random.below(4) == 0) size = random.below(size + 20);
  ExactBytes wire(size);
  std::memcpy(wire.data(), valid.data(), std::min(size, valid.size()));
  for (std::size_t change = 0; size != 0 && change < 1 + random.below(3); ++change)
    wire.data()[random.below(random.below(4) == 0 ? std::min<std::size_t>(size, 12) : size)] =
        static_cast<std::byte>(random.bits());
  std::span<const std::byte> rest = wire.bytes();
  try {
    sparse::read_section(coder, rest, elements, read);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::corrupt);
    return false;
  }
  EXPECT_EQ(read.indices.size(), read.values.size());
  bool ascending = read.size() == 0 || read.indices.back() < elements;
  for (std::size_t i = 1; i < read.size(); ++i) ascending = ascending && read.indices[i - 1] < read.indices[i];
  EXPECT_TRUE(ascending);
  return true;
}

TEST(SparseSection, AMillionMutatedPayloadsAreReadOrRefused) {
  constexpr std::size_t kPayloads = 1'000'000, kPerSection = 250;
  const HostCoder<Dense> fp32;
  const HostCoder<Int8> int8;
  FastRandom random(11);
  std::size_t accepted = 0;
  Entries read;
  for (std::size_t payload = 0; payload < kPayloads && !HasFailure(); payload += kPerSection) {
    const Coder& coder = random.below(2) == 0 ? static_cast<const Coder&>(fp32) : int8;
    const std::size_t elements = 1 + random.below(300);
    const auto form = static_cast<IndexForm>(random.below(3));
    const std::size_t count = form == IndexForm::all ? elements : random.below(elements / 2 + 1);
    const auto valid = section(coder, entries_of(drawn(count, elements, random.bits()), 1), elements, form);
    for (std::size_t i = 0; i < kPerSection; ++i)
      accepted += read_mutated(coder, valid, elements, random, read) ? 1 : 0;
  }
  EXPECT_GT(accepted, kPayloads / 10);
  EXPECT_LT(accepted, kPayloads * 9 / 10);
}

}  // namespace
}  // namespace tightwire::testing::sparse_index_test
