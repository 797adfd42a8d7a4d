#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/element.hpp>
#include <tightwire/error.hpp>

namespace tightwire::state {

/// Values one behind the other, little-endian, as the hosts of this library are.
class Writer {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void put(T value) { append(&value, sizeof value); }
  template <class T>
  void put(std::span<const T> values) {
    append(values.data(), values.size_bytes());
  }
  void text(std::string_view text) {
    put(std::uint64_t{text.size()});
    append(text.data(), text.size());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  /// Hands the bytes over, behind them what protects them.
  std::vector<std::byte> finish();

 private:
  void append(const void* from, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  std::vector<std::byte> bytes_;
};

inline std::uint64_t fingerprint(std::span<const std::byte> bytes) {
  return tightwire::fingerprint({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

inline std::vector<std::byte> Writer::finish() {
  put(fingerprint(bytes_));
  return std::move(bytes_);
}

/// Reads what a Writer wrote. Throws Error(corrupt) where less is there than is said.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take(std::uint64_t bytes) {
    if (bytes > rest_.size())
      throw Error(Errc::corrupt, "state: " + std::to_string(bytes) + " bytes are to come and " +
                                     std::to_string(rest_.size()) + " are there");
    const auto taken = rest_.first(static_cast<std::size_t>(bytes));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  std::string text() {
    const auto bytes = take(get<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

/// What a record is of.
enum class Kind : std::uint32_t {
  sender_residual = 1,  ///< of a parameter
  momentum = 2,         ///< of a parameter
  owner_residual = 3,   ///< of a run of a parameter that a rank owned, from `detail` on
  left_factor = 4,      ///< of a parameter, `detail` columns
  right_factor = 5,     ///< of a parameter, `detail` columns
  turn = 6,             ///< of a parameter that is sent as one factor in turn: `detail` is the side that comes next
  rank_choice = 7,      ///< of a parameter: averages as 64-bit floats; `detail` is an index and, above 32 bits, uses
  ranges = 8,           ///< of a bucket: where the ranges of its ranks begin, as 64-bit integers
  sequence = 9,         ///< of a bucket: `detail` is how often it was reduced; 32 bits say how often in steps kept
  // Over nodes, of runs as an owner's:
  node_residual = 10,         ///< what a node's sum lost on its way to the others
  result_residual = 11,       ///< what the result lost on its way to the ranks of the first node
  result_residual_copy = 12,  ///< of another node, where it is the same
};
inline constexpr Kind kFirstKind = Kind::sender_residual, kLastKind = Kind::result_residual_copy;
/// Of the records of a kind, whether all ranks have the same.
constexpr bool shared_by_ranks(Kind kind) { return kind >= Kind::left_factor && kind <= Kind::sequence; }
constexpr bool of_parameter(Kind kind) { return kind != Kind::ranges && kind != Kind::sequence; }
/// Whether a record is of a run of a parameter, from `detail` on.
constexpr bool of_run(Kind kind) { return kind == Kind::owner_residual || kind >= Kind::node_residual; }

/// A piece of a state. Its bytes need not be aligned. `elements` and `at` are of residuals and momenta.
struct Record {
  Kind kind;
  std::uint32_t number;  ///< of a parameter or bucket
  std::uint64_t detail;
  std::span<const std::byte> bytes;

  ElementType type = ElementType::f32;

  std::size_t elements() const { return bytes.size() / element_bytes(type); }
  float at(std::size_t i) const {
    return type == ElementType::f32 ? read<float>(i) : detail::from_bf16(read<std::uint16_t>(i));
  }

 private:
  template <class T>
  T read(std::size_t i) const {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
    return x;
  }
};

/// Appends records to a state.
class Records {
 public:
  template <class T>
  void add(Kind kind, std::size_t number, std::uint64_t detail, std::span<const T> values) {
    writer_.put(static_cast<std::uint32_t>(kind));
    writer_.put(static_cast<std::uint32_t>(number));
    writer_.put(detail);
    writer_.put(std::uint64_t{values.size_bytes()});
    writer_.put(values);
    ++count_;
  }
  std::uint64_t count() const { return count_; }
  std::span<const std::byte> bytes() const { return writer_.bytes(); }

 private:
  Writer writer_;
  std::uint64_t count_ = 0;
};

inline Record read_record(Reader& reader) {
  Record record{};
  record.kind = static_cast<Kind>(reader.get<std::uint32_t>());
  record.number = reader.get<std::uint32_t>();
  record.detail = reader.get<std::uint64_t>();
  record.bytes = reader.take(reader.get<std::uint64_t>());
  return record;
}

/// The record of a kind and number, or null.
inline const Record* find(std::span<const Record> records, Kind kind, std::size_t number) {
  for (const Record& record : records)
    if (record.kind == kind && record.number == number) return &record;
  return nullptr;
}

}  // namespace tightwire::state
