#pragma once
// The calls of Sessions on hosts and on devices, for handles of either kind. `call` is the name of the C function.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/tightwire.h>
#include <tightwire/session_options.hpp>

#include "handles.hpp"
#include "structures.hpp"

namespace tightwire::c {

/// What a handle of a Session is.
template <class Session, class Started>
struct SessionHandle {
  std::unique_ptr<Session> session;
  std::vector<std::optional<Started>> started;  // by bucket
  std::string description;
  std::vector<std::byte> saved;
  pid_t owner = getpid();
};

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

inline std::span<void* const> pointers(void* const* gradients, size_t count, const char* call) {
  require(gradients != nullptr || count == 0, call, "the gradients are null");
  return {gradients, count};
}

template <class Owner>
auto& session_of(Owner* session, const char* call) {
  return *usable(session, call).session;
}

/// Of a parameter that is all-reduced.
inline tightwire_buffer buffer_of(const char* name, const int64_t* shape, size_t dimensions, tightwire_type type) {
  return {.struct_size = sizeof(tightwire_buffer),
          .name = name,
          .shape = shape,
          .dimensions = dimensions,
          .type = type,
          .operation = TIGHTWIRE_ALL_REDUCE,
          .root = 0,
          .reserved = 0};
}

template <class Owner>
tightwire_status add_buffer(Owner* session, const tightwire_buffer* theirs, size_t* parameter, const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    require(theirs != nullptr, call, "the buffer is null");
    const tightwire_buffer buffer = copy_in(theirs, call);
    require(buffer.name != nullptr, call, "the name is null");
    require(buffer.shape != nullptr || buffer.dimensions == 0, call, "the shape is null");
    const std::size_t id =
        ours.add(buffer.name, std::vector<std::int64_t>(buffer.shape, buffer.shape + buffer.dimensions),
                 element_type(buffer.type, call), operation_of(buffer.operation, call), buffer.root);
    if (parameter != nullptr) *parameter = id;
  });
}

template <class Owner>
tightwire_status bucket_of(Owner* session, size_t parameter, size_t* bucket, const char* call) {
  return guarded([&] {
    const auto& ours = session_of(session, call);
    require(bucket != nullptr, call, "the output argument is null");
    *bucket = ours.bucket_of(parameter);
  });
}

template <class Owner>
tightwire_status add_bucket(Owner* session, const size_t* parameters, size_t count, size_t* bucket, const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    require(parameters != nullptr || count == 0, call, "the parameters are null");
    const std::size_t id = ours.add_bucket({parameters, count});
    if (bucket != nullptr) *bucket = id;
  });
}

template <class Owner>
tightwire_status seal(Owner* session, const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    ours.seal();
    session->started.resize(ours.buckets());
  });
}

template <class Owner, class... Stream>
tightwire_status start(Owner* session, size_t bucket, std::pair<void* const*, size_t> gradients, const char* call,
                       Stream... stream) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    const auto handle = ours.start(bucket, pointers(gradients.first, gradients.second, call), stream...);
    session->started[bucket] = handle;
  });
}

template <class Owner, class... Stream>
tightwire_status wait(Owner* session, size_t bucket, const char* call, Stream... stream) {
  return guarded([&] {
    usable(session, call);
    require(bucket < session->started.size(), call, "there is no such bucket, or the Session is not sealed");
    require(session->started[bucket].has_value(), call, "the bucket was not started");
    session->started[bucket]->wait(stream...);
  });
}

template <class Owner, class... Stream>
tightwire_status all_reduce(Owner* session, std::pair<void* const*, size_t> gradients, const char* call,
                            Stream... stream) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    ours.all_reduce(pointers(gradients.first, gradients.second, call), stream...);
  });
}

template <class Owner>
tightwire_status commit(Owner* session, int32_t* kept, const char* call) {
  return guarded([&] {
    const bool committed = session_of(session, call).commit();
    if (kept != nullptr) *kept = committed ? 1 : 0;
  });
}

template <class Owner>
tightwire_status rollback(Owner* session, const char* call) {
  return guarded([&] { session_of(session, call).rollback(); });
}

/// The bytes live as long as the caller may look at them; without `bytes` they are given back.
template <class Owner>
tightwire_status save(Owner* session, const void** bytes, size_t* size, const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    std::vector<std::byte>().swap(session->saved);
    if (bytes == nullptr) return;
    require(size != nullptr, call, "the size is null");
    session->saved = ours.save();
    *bytes = session->saved.data();
    *size = session->saved.size();
  });
}

template <class Owner>
tightwire_status restore(Owner* session, const void* bytes, size_t size, const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    require(bytes != nullptr || size == 0, call, "the bytes are null");
    ours.restore(std::span(static_cast<const std::byte*>(bytes), size));
  });
}

template <class Owner>
tightwire_status restore_ranks(Owner* session, const void* const* states, const size_t* sizes, size_t count,
                               const char* call) {
  return guarded([&] {
    auto& ours = session_of(session, call);
    require((states != nullptr && sizes != nullptr) || count == 0, call, "an argument is null");
    std::vector<std::span<const std::byte>> all;
    for (std::size_t i = 0; i < count; ++i) {
      require(states[i] != nullptr || sizes[i] == 0, call, "a state is null");
      all.emplace_back(static_cast<const std::byte*>(states[i]), sizes[i]);
    }
    ours.restore(std::span<const std::span<const std::byte>>(all));
  });
}

template <class Owner>
tightwire_status description(Owner* session, const char** text, const char* call) {
  return guarded([&] {
    const auto& ours = session_of(session, call);
    require(text != nullptr, call, "the output argument is null");
    session->description = ours.description();
    *text = session->description.c_str();
  });
}

template <class Owner>
tightwire_status counts(Owner* session, size_t* parameters, size_t* buckets, uint64_t* steps, size_t* residual_bytes,
                        const char* call) {
  return guarded([&] {
    const auto& ours = session_of(session, call);
    if (parameters != nullptr) *parameters = ours.parameters().size();
    if (buckets != nullptr) *buckets = ours.buckets();
    if (steps != nullptr) *steps = ours.steps();
    if (residual_bytes != nullptr) *residual_bytes = ours.residual_bytes();
  });
}

template <class Owner>
tightwire_status bucket_parameters(Owner* session, size_t bucket, size_t* parameters, size_t capacity, size_t* count,
                                   const char* call) {
  return guarded([&] {
    const auto& ids = session_of(session, call).bucket_parameters(bucket);
    require(parameters != nullptr || capacity == 0, call, "the parameters are null");
    std::copy_n(ids.begin(), std::min(capacity, ids.size()), parameters);
    if (count != nullptr) *count = ids.size();
  });
}

template <class Owner>
void close(Owner* session) {
  if (session == nullptr || session->owner != getpid()) return;
  delete session;
}

}  // namespace tightwire::c
