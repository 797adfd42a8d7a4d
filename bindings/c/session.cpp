#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "handles.hpp"
#include "session_specification.hpp"

struct tightwire_session {
  std::shared_ptr<tightwire::Transport> transport;
  std::unique_ptr<tightwire::Session> session;
  std::vector<std::optional<tightwire::Handle>> started;  // by bucket
  std::string description;
  std::vector<std::byte> saved;
  pid_t owner = getpid();
};

using tightwire::Session;
using tightwire::c::guarded;
using tightwire::c::require;
using tightwire::c::usable;

namespace {

Session& session_of(tightwire_session* session, const char* call) { return *usable(session, call).session; }

tightwire::ElementType element_type(tightwire_type type) {
  switch (type) {
    case TIGHTWIRE_FLOAT32: return tightwire::ElementType::f32;
    case TIGHTWIRE_BFLOAT16: return tightwire::ElementType::bf16;
    case TIGHTWIRE_FLOAT16: return tightwire::ElementType::f16;
  }
  throw tightwire::Error(tightwire::Errc::invalid_argument,
                         "tightwire_session_add_buffer: there is no type " + std::to_string(static_cast<int>(type)));
}

tightwire::Operation operation_of(tightwire_operation operation) {
  switch (operation) {
    case TIGHTWIRE_ALL_REDUCE: return tightwire::Operation::all_reduce;
    case TIGHTWIRE_REDUCE_SCATTER: return tightwire::Operation::reduce_scatter;
    case TIGHTWIRE_ALL_GATHER: return tightwire::Operation::all_gather;
    case TIGHTWIRE_BROADCAST: return tightwire::Operation::broadcast;
  }
  throw tightwire::Error(tightwire::Errc::invalid_argument, "tightwire_session_add_buffer: there is no operation " +
                                                                std::to_string(static_cast<int>(operation)));
}

const tightwire::StepStatistics& of_scope(const Session& session, tightwire_scope scope) {
  switch (scope) {
    case TIGHTWIRE_THIS_STEP: return session.step_statistics();
    case TIGHTWIRE_LAST_STEP: return session.last_step();
    case TIGHTWIRE_ALL_STEPS: return session.total();
  }
  throw tightwire::Error(tightwire::Errc::invalid_argument,
                         "tightwire_session_statistics: there is no scope " + std::to_string(static_cast<int>(scope)));
}

}  // namespace

tightwire_status tightwire_session_open(tightwire_communicator* communicator, const char* specification,
                                        tightwire_session** session) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_open";
    require(specification != nullptr && session != nullptr, kCall, "an argument is null");
    auto opened = std::make_unique<tightwire_session>();
    opened->transport = usable(communicator, kCall).transport;
    opened->session = std::make_unique<Session>(opened->transport,
                                                tightwire::c::parse_session(specification, opened->transport->size()));
    *session = opened.release();
  });
}

tightwire_status tightwire_session_add_buffer(tightwire_session* session, const tightwire_buffer* buffer,
                                              size_t* parameter) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_add_buffer";
    Session& ours = session_of(session, kCall);
    require(buffer != nullptr, kCall, "the buffer is null");
    require(buffer->struct_size >= sizeof(tightwire_buffer), kCall, "struct_size is not sizeof(tightwire_buffer)");
    require(buffer->name != nullptr, kCall, "the name is null");
    require(buffer->shape != nullptr || buffer->dimensions == 0, kCall, "the shape is null");
    const std::size_t id =
        ours.add(buffer->name, std::vector<std::int64_t>(buffer->shape, buffer->shape + buffer->dimensions),
                 element_type(buffer->type), operation_of(buffer->operation), buffer->root);
    if (parameter != nullptr) *parameter = id;
  });
}

tightwire_status tightwire_session_add(tightwire_session* session, const char* name, const int64_t* shape,
                                       size_t dimensions, tightwire_type type, size_t* parameter) {
  const tightwire_buffer buffer{.struct_size = sizeof(tightwire_buffer),
                                .name = name,
                                .shape = shape,
                                .dimensions = dimensions,
                                .type = type,
                                .operation = TIGHTWIRE_ALL_REDUCE,
                                .root = 0};
  return tightwire_session_add_buffer(session, &buffer, parameter);
}

tightwire_status tightwire_session_bucket_of(tightwire_session* session, size_t parameter, size_t* bucket) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_bucket_of";
    const Session& ours = session_of(session, kCall);
    require(bucket != nullptr, kCall, "the output argument is null");
    *bucket = ours.bucket_of(parameter);
  });
}

tightwire_status tightwire_session_add_bucket(tightwire_session* session, const size_t* parameters, size_t count,
                                              size_t* bucket) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_add_bucket";
    Session& ours = session_of(session, kCall);
    require(parameters != nullptr || count == 0, kCall, "the parameters are null");
    const std::size_t id = ours.add_bucket({parameters, count});
    if (bucket != nullptr) *bucket = id;
  });
}

tightwire_status tightwire_session_seal(tightwire_session* session) {
  return guarded([&] {
    Session& ours = session_of(session, "tightwire_session_seal");
    ours.seal();
    session->started.resize(ours.buckets());
  });
}

tightwire_status tightwire_session_start(tightwire_session* session, size_t bucket, void* const* gradients,
                                         size_t count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_start";
    Session& ours = session_of(session, kCall);
    require(gradients != nullptr || count == 0, kCall, "the gradients are null");
    const tightwire::Handle handle = ours.start(bucket, {gradients, count});
    session->started[bucket] = handle;
  });
}

tightwire_status tightwire_session_wait(tightwire_session* session, size_t bucket) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_wait";
    usable(session, kCall);
    require(bucket < session->started.size(), kCall, "there is no such bucket, or the Session is not sealed");
    require(session->started[bucket].has_value(), kCall, "the bucket was not started");
    session->started[bucket]->wait();
  });
}

tightwire_status tightwire_session_all_reduce(tightwire_session* session, void* const* gradients, size_t count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_all_reduce";
    Session& ours = session_of(session, kCall);
    require(gradients != nullptr || count == 0, kCall, "the gradients are null");
    ours.all_reduce(std::span<void* const>(gradients, count));
  });
}

tightwire_status tightwire_session_commit(tightwire_session* session, int32_t* kept) {
  return guarded([&] {
    const bool committed = session_of(session, "tightwire_session_commit").commit();
    if (kept != nullptr) *kept = committed ? 1 : 0;
  });
}

tightwire_status tightwire_session_rollback(tightwire_session* session) {
  return guarded([&] { session_of(session, "tightwire_session_rollback").rollback(); });
}

tightwire_status tightwire_session_scale_residuals(tightwire_session* session, float factor) {
  return guarded([&] { session_of(session, "tightwire_session_scale_residuals").scale_residuals(factor); });
}

tightwire_status tightwire_session_save(tightwire_session* session, const void** bytes, size_t* size) {
  return guarded([&] {
    Session& ours = session_of(session, "tightwire_session_save");
    std::vector<std::byte>().swap(session->saved);
    if (bytes == nullptr) return;
    require(size != nullptr, "tightwire_session_save", "the size is null");
    session->saved = ours.save();
    *bytes = session->saved.data();
    *size = session->saved.size();
  });
}

tightwire_status tightwire_session_restore(tightwire_session* session, const void* bytes, size_t size) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_restore";
    Session& ours = session_of(session, kCall);
    require(bytes != nullptr || size == 0, kCall, "the bytes are null");
    ours.restore(std::span(static_cast<const std::byte*>(bytes), size));
  });
}

tightwire_status tightwire_session_restore_ranks(tightwire_session* session, const void* const* states,
                                                 const size_t* sizes, size_t count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_restore_ranks";
    Session& ours = session_of(session, kCall);
    require((states != nullptr && sizes != nullptr) || count == 0, kCall, "an argument is null");
    std::vector<std::span<const std::byte>> all;
    for (std::size_t i = 0; i < count; ++i) {
      require(states[i] != nullptr || sizes[i] == 0, kCall, "a state is null");
      all.emplace_back(static_cast<const std::byte*>(states[i]), sizes[i]);
    }
    ours.restore(std::span<const std::span<const std::byte>>(all));
  });
}

tightwire_status tightwire_session_statistics(tightwire_session* session, tightwire_scope scope,
                                              tightwire_statistics* statistics) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_statistics";
    Session& ours = session_of(session, kCall);
    require(statistics != nullptr, kCall, "the output argument is null");
    require(statistics->struct_size >= sizeof(std::size_t), kCall, "struct_size is not set");
    const tightwire::StepStatistics& s = of_scope(ours, scope);
    tightwire::c::copy_out({.struct_size = 0,
                            .calls = s.calls,
                            .gradient_bytes = s.gradient_bytes,
                            .sent_bytes = s.sent_bytes,
                            .received_bytes = s.received_bytes,
                            .encode_seconds = s.encode_seconds,
                            .combine_seconds = s.combine_seconds,
                            .decode_seconds = s.decode_seconds,
                            .wire_seconds = s.wire_seconds,
                            .blocked_seconds = s.blocked_seconds,
                            .step_seconds = s.step_seconds,
                            .nonfinite = s.nonfinite},
                           *statistics);
  });
}

tightwire_status tightwire_session_description(tightwire_session* session, const char** text) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_description";
    Session& ours = session_of(session, kCall);
    require(text != nullptr, kCall, "the output argument is null");
    session->description = ours.description();
    *text = session->description.c_str();
  });
}

tightwire_status tightwire_session_counts(tightwire_session* session, size_t* parameters, size_t* buckets,
                                          uint64_t* steps, size_t* residual_bytes) {
  return guarded([&] {
    const Session& ours = session_of(session, "tightwire_session_counts");
    if (parameters != nullptr) *parameters = ours.parameters().size();
    if (buckets != nullptr) *buckets = ours.buckets();
    if (steps != nullptr) *steps = ours.steps();
    if (residual_bytes != nullptr) *residual_bytes = ours.residual_bytes();
  });
}

tightwire_status tightwire_session_bucket(tightwire_session* session, size_t bucket, size_t* parameters,
                                          size_t capacity, size_t* count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_bucket";
    const std::vector<tightwire::ParameterId>& ids = session_of(session, kCall).bucket_parameters(bucket);
    require(parameters != nullptr || capacity == 0, kCall, "the parameters are null");
    std::copy_n(ids.begin(), std::min(capacity, ids.size()), parameters);
    if (count != nullptr) *count = ids.size();
  });
}

void tightwire_session_close(tightwire_session* session) {
  if (session == nullptr || session->owner != getpid()) return;
  delete session;
}
