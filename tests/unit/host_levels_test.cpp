#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/detail/flush_to_zero.hpp>

#include "support/guarded.hpp"
#include "support/scalar_codec.hpp"

// Every instruction set gives the bytes, residuals and outputs of the scalar definition, for every built-in codec,
// element type, awkward size and value, in buffers without alignment, and touches nothing beside them.

namespace tightwire::testing::host_levels_test {
namespace {

using scalar::Kind;

constexpr Kind kKinds[] = {Kind::dense, Kind::bf16, Kind::fp16, Kind::int8, Kind::int4};
constexpr ElementType kTypes[] = {ElementType::f32, ElementType::bf16, ElementType::f16};

std::unique_ptr<Coder> coder(const scalar::Codec& codec, host::Level level) {
  const int block = static_cast<int>(codec.block);
  switch (codec.kind) {
    case Kind::dense: return std::make_unique<HostCoder<Dense>>(Dense{.block = block}, level);
    case Kind::bf16: return std::make_unique<HostCoder<Bf16>>(Bf16{.block = block}, level);
    case Kind::fp16: return std::make_unique<HostCoder<Fp16>>(Fp16{.block = block}, level);
    case Kind::int8: return std::make_unique<HostCoder<Int8>>(Int8{.block = block}, level);
    default: return std::make_unique<HostCoder<Int4>>(Int4{.block = block}, level);
  }
}

std::vector<host::Level> levels() {
  std::vector<host::Level> all;
  for (const host::Level level : {host::Level::baseline, host::Level::avx2, host::Level::avx512})
    if (level <= host::supported_level()) all.push_back(level);
  return all;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<std::byte> to_buffer(ElementType type, const std::vector<float>& x) {
  std::vector<std::byte> bytes(x.size() * element_bytes(type));
  for (std::size_t i = 0; i < x.size(); ++i) scalar::store(type, x[i], bytes.data() + i * element_bytes(type));
  return bytes;
}
std::vector<float> from_buffer(ElementType type, const std::vector<std::byte>& bytes) {
  std::vector<float> x(bytes.size() / element_bytes(type));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = scalar::load(type, bytes.data() + i * element_bytes(type));
  return x;
}

/// Values of one kind of difficulty.
enum class Pattern { gaussian, ties, zeros, tiny, huge, mixed, nan, infinity, half_range };
constexpr Pattern kPatterns[] = {Pattern::gaussian, Pattern::ties, Pattern::zeros,    Pattern::tiny,      Pattern::huge,
                                 Pattern::mixed,    Pattern::nan,  Pattern::infinity, Pattern::half_range};

std::vector<float> values(Pattern pattern, std::size_t count, std::size_t block, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> x(count);
  for (float& element : x) element = gaussian(random);
  const std::size_t places[] = {0, count / 2, count - 1, block - 1, count / block * block};
  const auto put = [&](std::size_t k, float value) {
    if (count != 0 && places[k % 5] < count) x[places[k % 5]] = value;
  };
  switch (pattern) {
    case Pattern::gaussian: break;
    case Pattern::ties:
      // +m and -m are equally large; the rest lies halfway between codes.
      for (std::size_t i = 0; i < count; ++i)
        x[i] = i % 7 == 3 ? 8.0f : i % 11 == 5 ? -8.0f : 0.5f * static_cast<float>(i % 17) - 4;
      break;
    case Pattern::zeros:
      for (std::size_t i = 0; i < count; ++i) x[i] = i % 3 == 0 ? -0.0f : 0.0f;
      break;
    case Pattern::tiny:
      for (std::size_t i = 0; i < count; ++i) x[i] *= i % 5 == 0 ? 0x1p-149f : i / 100 % 2 == 0 ? 0x1p-130f : 0x1p-121f;
      break;
    case Pattern::huge:
      for (std::size_t i = 0; i < count; ++i) x[i] = (i % 2 == 0 ? 1.0f : -0.99f) * (i % 13 == 0 ? FLT_MAX : 0x1p126f);
      break;
    case Pattern::mixed:
      for (std::size_t i = 0; i < count; ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(random() % 200) - 120);
      break;
    case Pattern::nan:
      for (unsigned k = 0; k <= seed % 5; ++k) put(seed + k, scalar::float_of(k % 2 == 0 ? 0x7fc00000u : 0xff812345u));
      break;
    case Pattern::infinity:
      for (unsigned k = 0; k <= seed % 3; ++k) put(seed + k, k % 2 == 0 ? INFINITY : -INFINITY);
      break;
    case Pattern::half_range:
      for (std::size_t i = 0; i < count; ++i) x[i] = i % 9 == 4 ? 65519.0f : x[i] * 30000.0f;
      break;
  }
  return x;
}

/// Where the residual lives.
enum class Feedback { off, in_place, double_buffered };

struct Case {
  scalar::Codec codec;
  ElementType type;
  std::size_t count;
  Pattern pattern;
  unsigned seed;

  std::size_t buffer_bytes() const { return count * element_bytes(type); }
  /// Wherever a buffer may begin: data anywhere, residuals on a float.
  std::size_t offset() const { return seed % 67; }
  std::uint8_t fill() const { return seed % 2 == 0 ? 0x5a : 0xa5; }

  std::vector<float> data(unsigned rank) const {
    return from_buffer(type, to_buffer(type, values(pattern, count, codec.block, seed + 31 * rank)));
  }
  /// Errors of earlier steps, with some subnormal among them.
  std::vector<float> residual(unsigned salt) const {
    std::vector<float> x = values(Pattern::gaussian, count, codec.block, seed + salt);
    for (std::size_t i = 0; i < count; ++i) x[i] *= i % 19 == 7 ? 0x1p-130f : 0.01f;
    return x;
  }
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << "codec " << static_cast<int>(c.codec.kind) << " block " << c.codec.block << ' ' << to_string(c.type)
               << " count " << c.count << " pattern " << static_cast<int>(c.pattern) << " seed " << c.seed;
  }
};

/// A residual of a call under test.
class ResidualBuffers {
 public:
  ResidualBuffers(const Case& c, Feedback feedback, const std::vector<float>& before)
      : feedback_(feedback),
        before_(before),
        first_(4 * c.count, c.offset() / 4 * 4, c.fill()),
        second_(4 * c.count, c.offset() / 4 * 4 + 4, c.fill()) {
    first_.set(before);
  }
  Residual get() {
    if (feedback_ == Feedback::off) return {};
    return {first_.floats(), feedback_ == Feedback::in_place ? first_.floats() : second_.floats()};
  }
  void expect(const std::vector<float>& after) const {
    if (feedback_ == Feedback::off) return;
    expect_same((feedback_ == Feedback::in_place ? first_ : second_).bytes(), bytes_of(after), "residual");
    if (feedback_ == Feedback::double_buffered) expect_same(first_.bytes(), bytes_of(before_), "residual before");
  }

 private:
  Feedback feedback_;
  std::vector<float> before_;
  Guarded first_, second_;
};

std::vector<float> sum(std::vector<float> x, const std::vector<float>& y) {
  for (std::size_t i = 0; i < x.size() && !y.empty(); ++i) x[i] += y[i];
  return x;
}

void check_encode(const Case& c, host::Level level, Feedback feedback) {
  const std::vector<float> x = c.data(0), before = feedback == Feedback::off ? std::vector<float>{} : c.residual(1);
  const scalar::Encoded expected = scalar::encode(c.codec, sum(x, before), before, ElementType::f32);
  const auto tested = coder(c.codec, level);
  ASSERT_EQ(tested->wire_bytes(c.count), expected.wire.size());
  Guarded data(c.buffer_bytes(), c.offset(), c.fill()), wire(expected.wire.size(), c.offset() + 1, c.fill());
  data.set(to_buffer(c.type, x));
  ResidualBuffers residual(c, feedback, before);
  EXPECT_EQ(tested->encode(c.type, {data.data(), residual.get(), c.count, wire.data()}), expected.nonfinite);
  expect_same(wire.bytes(), expected.wire, "wire");
  residual.expect(expected.residual);
}

void check_decode(const Case& c, host::Level level) {
  // Of what an encoder sends, and of any bytes.
  std::vector<std::byte> sent = scalar::encode(c.codec, c.data(0), {}, ElementType::f32).wire;
  std::vector<std::byte> any = sent;
  std::mt19937 random(c.seed);
  for (std::byte& byte : any) byte = static_cast<std::byte>(random());
  for (const std::vector<std::byte>& bytes : {sent, any}) {
    Guarded wire(bytes.size(), c.offset(), c.fill()), out(c.buffer_bytes(), c.offset() + 1, c.fill());
    wire.set(bytes);
    coder(c.codec, level)->decode(c.type, {wire.data(), c.count, out.data()});
    expect_same(out.bytes(), to_buffer(c.type, scalar::decode(c.codec, bytes, c.count)), "decoded");
  }
}

struct Sum {
  std::size_t ranks;
  std::optional<std::size_t> own;
  bool encoded;
  Feedback feedback;
};

void check_combine(const Case& c, host::Level level, const Sum& how) {
  const bool fed = how.feedback != Feedback::off;
  const std::vector<float> sender_before = fed ? c.residual(1) : std::vector<float>{};
  const std::vector<float> owner_before = fed && how.encoded ? c.residual(2) : std::vector<float>{};
  const float divisor = how.ranks % 2 == 0 || c.seed % 2 == 0 ? static_cast<float>(how.ranks) : 1.0f;

  std::vector<float> total, own(c.count);
  std::vector<std::vector<std::byte>> wires(how.ranks);
  scalar::Encoded contribution;
  for (std::size_t rank = 0; rank < how.ranks; ++rank) {
    std::vector<float> x = c.data(static_cast<unsigned>(rank));
    const bool mine = rank == how.own;
    if (mine) own = x, x = sum(x, sender_before);
    scalar::Encoded encoded = scalar::encode(c.codec, x, mine ? sender_before : std::vector<float>{}, ElementType::f32);
    total = rank == 0 ? encoded.values : sum(total, encoded.values);
    if (mine)
      contribution = encoded;
    else
      wires[rank] = encoded.wire;
  }
  for (float& x : total) x /= divisor;
  scalar::Encoded expected;
  if (how.encoded) {
    expected = scalar::encode(c.codec, sum(total, owner_before), owner_before, c.type);
  } else {
    for (const float x : total) {
      expected.values.push_back(scalar::rounded(c.type, scalar::is_nan(x) ? scalar::float_of(0x7fc00000u) : x));
      if (!scalar::is_finite(expected.values.back())) ++expected.nonfinite;
    }
  }

  // The output lies where our data lies, as it does in training.
  Guarded data(c.buffer_bytes(), c.offset(), c.fill()), wire(how.encoded ? expected.wire.size() : 0, 3, c.fill());
  data.set(to_buffer(c.type, own));
  ResidualBuffers sender(c, how.own ? how.feedback : Feedback::off, sender_before);
  ResidualBuffers owner(c, how.encoded ? how.feedback : Feedback::off, owner_before);
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < how.ranks; ++rank)
    sources.push_back(rank == how.own ? nullptr : wires[rank].data());
  const Coder::NonFinite met = coder(c.codec, level)
                                   ->combine(c.type, {sources, data.data(), sender.get(), owner.get(), c.count, divisor,
                                                      how.encoded ? wire.data() : nullptr, data.data()});
  EXPECT_EQ(met.contribution, contribution.nonfinite);
  EXPECT_EQ(met.result, expected.nonfinite);
  expect_same(wire.bytes(), expected.wire, "wire");
  expect_same(data.bytes(), to_buffer(c.type, expected.values), "out");
  sender.expect(contribution.residual);
  owner.expect(expected.residual);
}

void check_all(const Case& c) {
  SCOPED_TRACE(c);
  const Feedback feedback = static_cast<Feedback>(c.seed % 3);
  const Sum sums[] = {{2, 0, true, Feedback::in_place},
                      {2, 1, true, Feedback::double_buffered},
                      {3, c.seed % 3, c.seed % 2 == 0, feedback},
                      {1 + c.seed % 4, std::nullopt, true, feedback}};
  for (const host::Level level : levels()) {
    SCOPED_TRACE(to_string(level));
    check_encode(c, level, feedback);
    check_decode(c, level);
    check_combine(c, level, sums[c.seed % 4]);
  }
}

std::string codec_name(const ::testing::TestParamInfo<Kind>& codec) {
  const char* names[] = {"dense", "bf16", "fp16", "int8", "int4"};
  return names[static_cast<int>(codec.param)];
}
class HostLevels : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Codecs, HostLevels, ::testing::ValuesIn(kKinds), codec_name);

TEST_P(HostLevels, AwkwardCounts) {
  unsigned seed = 0;
  for (const std::size_t block : {16u, 48u, 64u, 80u, 256u, 1008u, 4096u})
    for (const ElementType type : kTypes)
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17},
                                      block - 1, block, block + 1, 3 * block + 7, std::size_t{10000}}) {
        check_all({{GetParam(), block}, type, count, Pattern::gaussian, seed++});
        if (HasFailure()) return;
      }
}

TEST_P(HostLevels, AwkwardValues) {
  unsigned seed = 1000;
  for (const bool flush : {false, true}) {
    if (flush && !detail::FlushToZero::kAvailable) break;
    std::optional<detail::FlushToZero> flushing;
    if (flush) flushing.emplace();
    for (const Pattern pattern : kPatterns)
      for (const std::size_t block : {16u, 80u, 64u, 256u})
        for (const ElementType type : kTypes)
          for (unsigned variant = 0; variant < 4; ++variant) {
            check_all({{GetParam(), block}, type, 5 * block + 9 + variant % 3 * 1024, pattern, seed++});
            if (HasFailure()) return;
          }
  }
}

// What takes no arithmetic does not depend on the mode of the processor: not in a short last group either.
TEST(HostModes, ExactElementsThatAreSubnormalPassWhereTheProcessorFlushesThem) {
  const std::vector<float> x(70, 0x1p-130f);
  for (const host::Level level : levels()) {
    const HostCoder<Dense> dense({}, level);
    std::vector<std::byte> wire(dense.wire_bytes(x.size()));
    std::vector<float> out(x.size());
    {
      const detail::FlushToZero flush;
      dense.encode(ElementType::f32, {x.data(), {}, x.size(), wire.data()});
      dense.decode(ElementType::f32, {wire.data(), x.size(), out.data()});
    }
    EXPECT_EQ(std::memcmp(out.data(), x.data(), x.size() * sizeof(float)), 0) << to_string(level);
  }
}

}  // namespace
}  // namespace tightwire::testing::host_levels_test
