#pragma once
// The structures of tightwire.h, which grow.
#include <cstddef>
#include <type_traits>

#include <tightwire/tightwire.h>

#include "growing.hpp"

namespace tightwire::c {

template <>
inline constexpr std::size_t kFirstVersion<tightwire_rendezvous> = offsetof(tightwire_rendezvous, timeout_ms) +
                                                                   sizeof(int64_t);
template <>
inline constexpr std::size_t kFirstVersion<tightwire_replica> = offsetof(tightwire_replica, reserved) + sizeof(int32_t);
template <>
inline constexpr std::size_t kFirstVersion<tightwire_buffer> = offsetof(tightwire_buffer, reserved) + sizeof(int32_t);
template <>
inline constexpr std::size_t kFirstVersion<tightwire_statistics> = offsetof(tightwire_statistics, nonfinite) +
                                                                   sizeof(uint64_t);

// A member that went into padding would not change the size. Of one that grew, name the new last member here.
static_assert(sizeof(tightwire_rendezvous) == offsetof(tightwire_rendezvous, timeout_ms) + sizeof(int64_t));
static_assert(sizeof(tightwire_replica) == offsetof(tightwire_replica, reserved) + sizeof(int32_t));
static_assert(sizeof(tightwire_buffer) == offsetof(tightwire_buffer, reserved) + sizeof(int32_t));
static_assert(sizeof(tightwire_statistics) == offsetof(tightwire_statistics, nonfinite) + sizeof(uint64_t));
static_assert(std::has_unique_object_representations_v<tightwire_rendezvous> &&
              std::has_unique_object_representations_v<tightwire_replica> &&
              std::has_unique_object_representations_v<tightwire_buffer>);
static_assert(sizeof(tightwire_statistics) == sizeof(std::size_t) + 5 * sizeof(uint64_t) + 6 * sizeof(double));

}  // namespace tightwire::c
