#pragma once
// Structures start with their size, so that callers of every version and libraries of every version understand each
// other: members are only ever added at the end, and 0 is what a member was before it was there.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include <tightwire/error.hpp>

namespace tightwire::c {

/// Bytes of a structure in version 1 of the interface, the least that a caller may have. Never to be changed.
template <class Structure>
inline constexpr std::size_t kFirstVersion = 0;

/// What a caller says the size of its structure is. Throws Error(invalid_argument) for what no version has.
template <class Structure>
std::size_t size_of(const Structure* theirs, const std::string& who) {
  constexpr std::size_t kMost = 4096;  // or it was never set
  std::size_t size = 0;
  std::memcpy(&size, theirs, sizeof size);
  if (size < kFirstVersion<Structure> || size > kMost || size % alignof(Structure) != 0)
    throw Error(Errc::invalid_argument, who + ": struct_size is " + std::to_string(size) +
                                            ", which no version has; set it to the sizeof of the structure");
  return size;
}

/// A caller's structure, with 0 for members that an older caller does not have. Throws Error(invalid_argument) as
/// above; Error(unsupported) where a newer caller asks for what this library does not know.
template <class Structure>
Structure copy_in(const Structure* theirs, const std::string& who) {
  static_assert(std::is_trivially_copyable_v<Structure>);
  const std::size_t size = size_of(theirs, who);
  const auto* const bytes = reinterpret_cast<const std::byte*>(theirs);
  Structure ours{};
  std::memcpy(&ours, bytes, std::min(sizeof ours, size));
  if (size > sizeof ours &&
      std::any_of(bytes + sizeof ours, bytes + size, [](std::byte each) { return each != std::byte{0}; }))
    throw Error(Errc::unsupported, who + ": of the " + std::to_string(size) +
                                       " bytes of the structure this library knows the first " +
                                       std::to_string(sizeof ours) + ", and those beyond are not 0");
  if constexpr (requires { ours.reserved; })
    if (ours.reserved != 0) throw Error(Errc::unsupported, who + ": reserved must be 0");
  return ours;
}

/// Fills a caller's structure as far as it goes; members of a newer caller that are unknown here stay as they are.
template <class Structure>
void copy_out(Structure ours, Structure* theirs, const std::string& who) {
  ours.struct_size = size_of(theirs, who);
  std::memcpy(theirs, &ours, std::min(sizeof ours, ours.struct_size));
}

}  // namespace tightwire::c
