#pragma once
// What Sessions on hosts and on devices take from C alike.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tightwire/tightwire.h>
#include <tightwire/session_options.hpp>

#include "handles.hpp"

namespace tightwire::c {

inline ElementType element_type(tightwire_type type, const char* call) {
  switch (type) {
    case TIGHTWIRE_FLOAT32: return ElementType::f32;
    case TIGHTWIRE_BFLOAT16: return ElementType::bf16;
    case TIGHTWIRE_FLOAT16: return ElementType::f16;
  }
  throw Error(Errc::invalid_argument,
              std::string(call) + ": there is no type " + std::to_string(static_cast<int>(type)));
}

inline Operation operation_of(tightwire_operation operation, const char* call) {
  switch (operation) {
    case TIGHTWIRE_ALL_REDUCE: return Operation::all_reduce;
    case TIGHTWIRE_REDUCE_SCATTER: return Operation::reduce_scatter;
    case TIGHTWIRE_ALL_GATHER: return Operation::all_gather;
    case TIGHTWIRE_BROADCAST: return Operation::broadcast;
  }
  throw Error(Errc::invalid_argument,
              std::string(call) + ": there is no operation " + std::to_string(static_cast<int>(operation)));
}

template <class Session>
void add_buffer(Session& session, const tightwire_buffer* buffer, size_t* parameter, const char* call) {
  require(buffer != nullptr, call, "the buffer is null");
  require(buffer->struct_size >= sizeof(tightwire_buffer), call, "struct_size is not sizeof(tightwire_buffer)");
  require(buffer->name != nullptr, call, "the name is null");
  require(buffer->shape != nullptr || buffer->dimensions == 0, call, "the shape is null");
  const std::size_t id =
      session.add(buffer->name, std::vector<std::int64_t>(buffer->shape, buffer->shape + buffer->dimensions),
                  element_type(buffer->type, call), operation_of(buffer->operation, call), buffer->root);
  if (parameter != nullptr) *parameter = id;
}

template <class Session>
void add_bucket(Session& session, const size_t* parameters, size_t count, size_t* bucket, const char* call) {
  require(parameters != nullptr || count == 0, call, "the parameters are null");
  const std::size_t id = session.add_bucket({parameters, count});
  if (bucket != nullptr) *bucket = id;
}

inline std::span<void* const> pointers(void* const* gradients, size_t count, const char* call) {
  require(gradients != nullptr || count == 0, call, "the gradients are null");
  return {gradients, count};
}

/// Of the calls that restore a state: what the caller gives, or why that is none.
inline std::span<const std::byte> state_of(const void* bytes, size_t size, const char* call) {
  require(bytes != nullptr || size == 0, call, "the bytes are null");
  return {static_cast<const std::byte*>(bytes), size};
}
inline std::vector<std::span<const std::byte>> states_of(const void* const* states, const size_t* sizes, size_t count,
                                                         const char* call) {
  require((states != nullptr && sizes != nullptr) || count == 0, call, "an argument is null");
  std::vector<std::span<const std::byte>> all;
  for (std::size_t i = 0; i < count; ++i) {
    require(states[i] != nullptr || sizes[i] == 0, call, "a state is null");
    all.emplace_back(static_cast<const std::byte*>(states[i]), sizes[i]);
  }
  return all;
}

/// Into `kept`, which lives as long as the caller may look at it; without `bytes` it is given back.
template <class Session>
void save(Session& session, std::vector<std::byte>& kept, const void** bytes, size_t* size, const char* call) {
  std::vector<std::byte>().swap(kept);
  if (bytes == nullptr) return;
  require(size != nullptr, call, "the size is null");
  kept = session.save();
  *bytes = kept.data();
  *size = kept.size();
}

template <class Session>
void counts(const Session& session, size_t* parameters, size_t* buckets, uint64_t* steps, size_t* residual_bytes) {
  if (parameters != nullptr) *parameters = session.parameters().size();
  if (buckets != nullptr) *buckets = session.buckets();
  if (steps != nullptr) *steps = session.steps();
  if (residual_bytes != nullptr) *residual_bytes = session.residual_bytes();
}

template <class Session>
void parameters_of_bucket(const Session& session, size_t bucket, size_t* parameters, size_t capacity, size_t* count,
                          const char* call) {
  const auto& ids = session.bucket_parameters(bucket);
  require(parameters != nullptr || capacity == 0, call, "the parameters are null");
  std::copy_n(ids.begin(), std::min(capacity, ids.size()), parameters);
  if (count != nullptr) *count = ids.size();
}

}  // namespace tightwire::c
