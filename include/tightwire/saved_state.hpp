#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tightwire/policy.hpp>
#include <tightwire/state.hpp>

namespace tightwire {

/// What a Session saved of one rank, checked and not yet taken up. Points into the bytes it was read from.
///
/// Bytes, little-endian: 8 "TWSTATE3", 4 ranks, 4 rank, 4 type of residuals (0 fp32, 1 bf16), 8 steps ended, 8 of them
/// committed, 8 of them rolled back modulo 256, 8 that name the run (0: unknown); 8 number of parameters, of each 8
/// length of its name, the name, 8 elements, 8 length of the basis of its residuals, the basis (over nodes, where the
/// codecs inside and across have others: both, with | between); 8 number of records, of each 4 kind, 4 number, 8
/// detail, 8 length, its bytes (state.hpp); 8 FNV-1a of all before.
struct SavedState {
  static constexpr std::uint64_t kMagic = 0x3345544154535754;  // "TWSTATE3"
  /// The same without the run, and before that without the type of residuals, which was fp32. Both are still read.
  static constexpr std::uint64_t kSecondMagic = 0x3245544154535754;  // "TWSTATE2"
  static constexpr std::uint64_t kFirstMagic = 0x3145544154535754;   // "TWSTATE1"
  struct Counters {
    std::uint64_t steps = 0, committed = 0, rollbacks = 0;
    std::uint64_t run = 0;  ///< drawn when the first Session of a run was sealed; those that restored it have it too
    bool same_step(const Counters& other) const {
      return steps == other.steps && committed == other.committed && rollbacks == other.rollbacks;
    }
  };

  std::uint32_t ranks = 0, rank = 0;
  ElementType residuals = ElementType::f32;
  Counters counters;
  std::vector<std::string> bases;  ///< of residuals, by parameter of this Session
  std::vector<state::Record> records;

  /// Throws Error(corrupt) for bytes that are not a whole state; Error(mismatch) for one of other parameters, naming
  /// the first difference. Numbers of parameters in records become those of `parameters`.
  SavedState(std::span<const std::byte> bytes, const std::vector<Parameter>& parameters) {
    state::Reader reader(bytes);
    const auto magic = reader.get<std::uint64_t>();
    if (magic != kMagic && magic != kSecondMagic && magic != kFirstMagic)
      throw Error(Errc::corrupt, "state: not one of tightwire");
    if (bytes.size() < 2 * sizeof(std::uint64_t) ||
        state::Reader(bytes.last(sizeof(std::uint64_t))).get<std::uint64_t>() !=
            state::fingerprint(bytes.first(bytes.size() - sizeof(std::uint64_t))))
      throw Error(Errc::corrupt, "state: its bytes are damaged");
    ranks = reader.get<std::uint32_t>();
    rank = reader.get<std::uint32_t>();
    const auto type = magic != kFirstMagic ? reader.get<std::uint32_t>() : 0;
    residuals = static_cast<ElementType>(type);
    counters.steps = reader.get<std::uint64_t>();
    counters.committed = reader.get<std::uint64_t>();
    counters.rollbacks = reader.get<std::uint64_t>();
    if (magic == kMagic) counters.run = reader.get<std::uint64_t>();
    if (ranks == 0 || rank >= ranks) throw corrupt("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    if (type > static_cast<std::uint32_t>(ElementType::bf16))
      throw corrupt("residuals of type " + std::to_string(type));
    const std::vector<std::uint32_t> numbers = read_parameters(reader, parameters);
    for (auto left = reader.get<std::uint64_t>(); left != 0; --left)
      add(state::read_record(reader), numbers, parameters);
    if (reader.left() != sizeof(std::uint64_t)) throw corrupt("more bytes than it says");
  }

  static Error corrupt(const std::string& what) { return Error(Errc::corrupt, "state: " + what); }

 private:
  std::vector<std::uint32_t> read_parameters(state::Reader& reader, const std::vector<Parameter>& parameters) {
    const auto count = reader.get<std::uint64_t>();
    std::vector<std::uint32_t> numbers;
    bases.resize(parameters.size());
    std::vector<bool> met(parameters.size());
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string name = reader.text();
      const auto elements = reader.get<std::uint64_t>();
      std::size_t id = 0;
      while (id < parameters.size() && parameters[id].name != name) ++id;
      if (id == parameters.size())
        throw Error(Errc::mismatch, "state: has a parameter \"" + name + "\", which this Session has not");
      if (parameters[id].count != elements)
        throw Error(Errc::mismatch, "state: \"" + name + "\" has " + std::to_string(elements) +
                                        " elements, and in this Session " + std::to_string(parameters[id].count));
      bases[id] = reader.text();
      if (met[id]) throw corrupt("has \"" + name + "\" twice");
      met[id] = true;
      numbers.push_back(static_cast<std::uint32_t>(id));
    }
    for (std::size_t id = 0; id < parameters.size(); ++id)
      if (!met[id])
        throw Error(Errc::mismatch, "state: has no parameter \"" + parameters[id].name + "\", which this Session has");
    return numbers;
  }

  void add(state::Record record, const std::vector<std::uint32_t>& numbers, const std::vector<Parameter>& parameters) {
    using state::Kind;
    if (record.kind < state::kFirstKind || record.kind > state::kLastKind)
      throw corrupt("a record of kind " + std::to_string(static_cast<std::uint32_t>(record.kind)));
    if (state::of_parameter(record.kind)) {
      if (record.number >= numbers.size()) throw corrupt("a record of parameter " + std::to_string(record.number));
      record.number = numbers[record.number];
      if (record.kind == Kind::sender_residual || state::of_run(record.kind)) record.type = residuals;
      const std::uint64_t count = parameters[record.number].count, elements = record.elements();
      const bool whole = record.kind == Kind::sender_residual || record.kind == Kind::momentum;
      const bool fits =
          whole ? elements <= count
                : !state::of_run(record.kind) || (record.detail <= count && elements <= count - record.detail);
      if (!fits || record.bytes.size() % element_bytes(record.type) != 0)
        throw corrupt("a record of " + std::to_string(record.bytes.size()) + " bytes for \"" +
                      parameters[record.number].name + "\"");
    }
    records.push_back(record);
  }
};

}  // namespace tightwire
