// A library whose structures have grown still serves callers that know the first version alone. What callers of a later
// version than the library's get is in tests/c/misuse_test.c.
#include <gtest/gtest.h>

#include "../../bindings/c/growing.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::c_structures {

struct First {
  std::size_t struct_size;
  std::int32_t number;
  std::int32_t reserved;
};
struct Grown {
  std::size_t struct_size;
  std::int32_t number;
  std::int32_t reserved;
  std::int64_t added;
};

}  // namespace tightwire::testing::c_structures

template <>
inline constexpr std::size_t tightwire::c::kFirstVersion<tightwire::testing::c_structures::Grown> = 16;

namespace tightwire::testing::c_structures {
namespace {

/// As it comes from a caller of the first version: what is behind it is not the structure's.
struct Room {
  First first;
  std::int64_t behind = 77;
};

TEST(CStructures, CallersOfTheFirstVersionAreServed) {
  Room room{.first = {.struct_size = sizeof(First), .number = 5, .reserved = 0}};
  const auto* const theirs = reinterpret_cast<const Grown*>(&room);
  const Grown grown = c::copy_in(theirs, "call");
  EXPECT_EQ(grown.number, 5);
  EXPECT_EQ(grown.added, 0) << "what the caller does not know is 0";
  c::copy_out(Grown{.struct_size = 0, .number = 6, .reserved = 0, .added = 9}, reinterpret_cast<Grown*>(&room), "call");
  EXPECT_EQ(room.first.struct_size, sizeof(First));
  EXPECT_EQ(room.first.number, 6);
  EXPECT_EQ(room.behind, 77);
  room.first.struct_size = sizeof(First) - 8;
  EXPECT_ERROR(c::copy_in(theirs, "call"), Errc::invalid_argument, "call: struct_size is 8, which no version has");
}

}  // namespace
}  // namespace tightwire::testing::c_structures
