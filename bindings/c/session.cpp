#include <optional>
#include <span>
#include <vector>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "handles.hpp"
#include "session_calls.hpp"
#include "session_file.hpp"
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
using tightwire::c::pointers;
using tightwire::c::require;
using tightwire::c::usable;

namespace {

Session& session_of(tightwire_session* session, const char* call) { return *usable(session, call).session; }

tightwire_session* opened(const std::shared_ptr<tightwire::Transport>& transport, tightwire::SessionOptions options) {
  auto session = std::make_unique<tightwire_session>();
  session->transport = transport;
  session->session = std::make_unique<Session>(transport, std::move(options));
  return session.release();
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
    const auto& transport = usable(communicator, kCall).transport;
    *session = opened(transport, tightwire::c::parse_session(specification, transport->size()));
  });
}

tightwire_status tightwire_session_open_file(tightwire_communicator* communicator, const char* path,
                                             tightwire_session** session) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_open_file";
    require(path != nullptr && session != nullptr, kCall, "an argument is null");
    const auto& transport = usable(communicator, kCall).transport;
    *session = opened(transport, tightwire::c::read_session_file(path, transport->size()));
  });
}

tightwire_status tightwire_session_add_buffer(tightwire_session* session, const tightwire_buffer* buffer,
                                              size_t* parameter) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_add_buffer";
    tightwire::c::add_buffer(session_of(session, kCall), buffer, parameter, kCall);
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
    tightwire::c::add_bucket(session_of(session, kCall), parameters, count, bucket, kCall);
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
    const tightwire::Handle handle = ours.start(bucket, pointers(gradients, count, kCall));
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
    ours.all_reduce(pointers(gradients, count, kCall));
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
    constexpr const char* kCall = "tightwire_session_save";
    Session& ours = session_of(session, kCall);
    tightwire::c::save(ours, session->saved, bytes, size, kCall);
  });
}

tightwire_status tightwire_session_restore(tightwire_session* session, const void* bytes, size_t size) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_restore";
    Session& ours = session_of(session, kCall);
    ours.restore(tightwire::c::state_of(bytes, size, kCall));
  });
}

tightwire_status tightwire_session_restore_ranks(tightwire_session* session, const void* const* states,
                                                 const size_t* sizes, size_t count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_restore_ranks";
    Session& ours = session_of(session, kCall);
    ours.restore(std::span<const std::span<const std::byte>>(tightwire::c::states_of(states, sizes, count, kCall)));
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
    tightwire::c::counts(ours, parameters, buckets, steps, residual_bytes);
  });
}

tightwire_status tightwire_session_bucket(tightwire_session* session, size_t bucket, size_t* parameters,
                                          size_t capacity, size_t* count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_session_bucket";
    const Session& ours = session_of(session, kCall);
    tightwire::c::parameters_of_bucket(ours, bucket, parameters, capacity, count, kCall);
  });
}

void tightwire_session_close(tightwire_session* session) {
  if (session == nullptr || session->owner != getpid()) return;
  delete session;
}
