#include <optional>
#include <vector>

#include <tightwire/cuda_session.hpp>

#include "../c/session_calls.hpp"
#include "../c/session_specification.hpp"
#include "handles.hpp"

struct tightwire_device_session {
  std::unique_ptr<tightwire::cuda::Session> session;
  std::vector<std::optional<tightwire::cuda::Handle>> started;  // by bucket
  std::string description;
  std::vector<std::byte> saved;
  pid_t owner = getpid();
};

using tightwire::c::guarded;
using tightwire::c::pointers;
using tightwire::c::require;
using tightwire::c::usable;
using tightwire::cuda::Session;

namespace {

Session& session_of(tightwire_device_session* session, const char* call) { return *usable(session, call).session; }

/// A telemetry that was asked for and told nothing would be a silent one.
tightwire::SessionOptions options_of(const char* specification, int ranks, const char* call) {
  tightwire::SessionOptions options = tightwire::c::parse_session(specification, ranks);
  if (options.observer)
    throw tightwire::Error(tightwire::Errc::unsupported, std::string(call) + ": telemetry= is not for devices");
  return options;
}

}  // namespace

tightwire_status tightwire_device_session_open(tightwire_device_communicator* communicator, const char* specification,
                                               tightwire_device_session** session) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_open";
    require(specification != nullptr && session != nullptr, kCall, "an argument is null");
    const auto& transport = usable(communicator, kCall).transport;
    auto opened = std::make_unique<tightwire_device_session>();
    opened->session = std::make_unique<Session>(transport, options_of(specification, transport->size(), kCall));
    *session = opened.release();
  });
}

tightwire_status tightwire_device_session_add_buffer(tightwire_device_session* session, const tightwire_buffer* buffer,
                                                     size_t* parameter) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_add_buffer";
    tightwire::c::add_buffer(session_of(session, kCall), buffer, parameter, kCall);
  });
}

tightwire_status tightwire_device_session_add(tightwire_device_session* session, const char* name, const int64_t* shape,
                                              size_t dimensions, tightwire_type type, size_t* parameter) {
  const tightwire_buffer buffer{.struct_size = sizeof(tightwire_buffer),
                                .name = name,
                                .shape = shape,
                                .dimensions = dimensions,
                                .type = type,
                                .operation = TIGHTWIRE_ALL_REDUCE,
                                .root = 0};
  return tightwire_device_session_add_buffer(session, &buffer, parameter);
}

tightwire_status tightwire_device_session_bucket_of(tightwire_device_session* session, size_t parameter,
                                                    size_t* bucket) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_bucket_of";
    const Session& ours = session_of(session, kCall);
    require(bucket != nullptr, kCall, "the output argument is null");
    *bucket = ours.bucket_of(parameter);
  });
}

tightwire_status tightwire_device_session_add_bucket(tightwire_device_session* session, const size_t* parameters,
                                                     size_t count, size_t* bucket) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_add_bucket";
    tightwire::c::add_bucket(session_of(session, kCall), parameters, count, bucket, kCall);
  });
}

tightwire_status tightwire_device_session_seal(tightwire_device_session* session) {
  return guarded([&] {
    Session& ours = session_of(session, "tightwire_device_session_seal");
    ours.seal();
    session->started.resize(ours.buckets());
  });
}

tightwire_status tightwire_device_session_start(tightwire_device_session* session, size_t bucket,
                                                void* const* gradients, size_t count, CUstream_st* producer) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_start";
    Session& ours = session_of(session, kCall);
    const tightwire::cuda::Handle handle = ours.start(bucket, pointers(gradients, count, kCall), producer);
    session->started[bucket] = handle;
  });
}

tightwire_status tightwire_device_session_wait(tightwire_device_session* session, size_t bucket, CUstream_st* stream) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_wait";
    usable(session, kCall);
    require(bucket < session->started.size(), kCall, "there is no such bucket, or the Session is not sealed");
    require(session->started[bucket].has_value(), kCall, "the bucket was not started");
    session->started[bucket]->wait(stream);
  });
}

tightwire_status tightwire_device_session_all_reduce(tightwire_device_session* session, void* const* gradients,
                                                     size_t count, CUstream_st* stream) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_all_reduce";
    session_of(session, kCall).all_reduce(pointers(gradients, count, kCall), stream);
  });
}

tightwire_status tightwire_device_session_commit(tightwire_device_session* session, int32_t* kept) {
  return guarded([&] {
    const bool committed = session_of(session, "tightwire_device_session_commit").commit();
    if (kept != nullptr) *kept = committed ? 1 : 0;
  });
}

tightwire_status tightwire_device_session_rollback(tightwire_device_session* session) {
  return guarded([&] { session_of(session, "tightwire_device_session_rollback").rollback(); });
}

tightwire_status tightwire_device_session_synchronize(tightwire_device_session* session) {
  return guarded([&] { session_of(session, "tightwire_device_session_synchronize").synchronize(); });
}

tightwire_status tightwire_device_session_save(tightwire_device_session* session, const void** bytes, size_t* size) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_save";
    Session& ours = session_of(session, kCall);
    tightwire::c::save(ours, session->saved, bytes, size, kCall);
  });
}

tightwire_status tightwire_device_session_restore(tightwire_device_session* session, const void* bytes, size_t size) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_restore";
    session_of(session, kCall).restore(tightwire::c::state_of(bytes, size, kCall));
  });
}

tightwire_status tightwire_device_session_restore_ranks(tightwire_device_session* session, const void* const* states,
                                                        const size_t* sizes, size_t count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_restore_ranks";
    Session& ours = session_of(session, kCall);
    ours.restore(std::span<const std::span<const std::byte>>(tightwire::c::states_of(states, sizes, count, kCall)));
  });
}

tightwire_status tightwire_device_session_statistics(tightwire_device_session* session,
                                                     tightwire_statistics* statistics) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_statistics";
    const tightwire::Statistics& total = session_of(session, kCall).total();
    require(statistics != nullptr, kCall, "the output argument is null");
    require(statistics->struct_size >= sizeof(std::size_t), kCall, "struct_size is not set");
    tightwire_statistics told{};
    told.calls = total.calls;
    told.gradient_bytes = total.gradient_bytes;
    told.sent_bytes = total.sent_bytes;
    told.received_bytes = total.received_bytes;
    told.nonfinite = total.nonfinite;
    tightwire::c::copy_out(told, *statistics);
  });
}

tightwire_status tightwire_device_session_description(tightwire_device_session* session, const char** text) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_description";
    const Session& ours = session_of(session, kCall);
    require(text != nullptr, kCall, "the output argument is null");
    session->description = ours.description();
    *text = session->description.c_str();
  });
}

tightwire_status tightwire_device_session_counts(tightwire_device_session* session, size_t* parameters, size_t* buckets,
                                                 uint64_t* steps, size_t* residual_bytes) {
  return guarded([&] {
    const Session& ours = session_of(session, "tightwire_device_session_counts");
    tightwire::c::counts(ours, parameters, buckets, steps, residual_bytes);
  });
}

tightwire_status tightwire_device_session_bucket(tightwire_device_session* session, size_t bucket, size_t* parameters,
                                                 size_t capacity, size_t* count) {
  return guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_bucket";
    tightwire::c::parameters_of_bucket(session_of(session, kCall), bucket, parameters, capacity, count, kCall);
  });
}

void tightwire_device_session_close(tightwire_device_session* session) {
  if (session == nullptr || session->owner != getpid()) return;
  delete session;
}
