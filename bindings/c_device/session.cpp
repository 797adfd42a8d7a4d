#include <tightwire/cuda_session.hpp>

#include "../c/session_calls.hpp"
#include "../c/session_specification.hpp"
#include "handles.hpp"

namespace c = tightwire::c;

struct tightwire_device_session : c::SessionHandle<tightwire::cuda::Session, tightwire::cuda::Handle> {};

namespace {

/// A telemetry that was asked for and told nothing would be a silent one.
tightwire::SessionOptions options_of(const char* specification, int ranks, const char* call) {
  tightwire::SessionOptions options = c::parse_session(specification, ranks);
  if (options.observer)
    throw tightwire::Error(tightwire::Errc::unsupported, std::string(call) + ": telemetry= is not for devices");
  return options;
}

}  // namespace

tightwire_status tightwire_device_session_open(tightwire_device_communicator* communicator, const char* specification,
                                               tightwire_device_session** session) {
  return c::guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_open";
    c::require(specification != nullptr && session != nullptr, kCall, "an argument is null");
    const auto& transport = c::usable(communicator, kCall).transport;
    auto opened = std::make_unique<tightwire_device_session>();
    opened->session =
        std::make_unique<tightwire::cuda::Session>(transport, options_of(specification, transport->size(), kCall));
    *session = opened.release();
  });
}

tightwire_status tightwire_device_session_synchronize(tightwire_device_session* session) {
  return c::guarded([&] { c::session_of(session, "tightwire_device_session_synchronize").synchronize(); });
}

tightwire_status tightwire_device_session_statistics(tightwire_device_session* session,
                                                     tightwire_statistics* statistics) {
  return c::guarded([&] {
    constexpr const char* kCall = "tightwire_device_session_statistics";
    const tightwire::Statistics& total = c::session_of(session, kCall).total();
    c::require(statistics != nullptr, kCall, "the output argument is null");
    tightwire_statistics told{};
    told.calls = total.calls;
    told.gradient_bytes = total.gradient_bytes;
    told.sent_bytes = total.sent_bytes;
    told.received_bytes = total.received_bytes;
    told.nonfinite = total.nonfinite;
    c::copy_out(told, statistics, kCall);
  });
}

tightwire_status tightwire_device_session_add_buffer(tightwire_device_session* session, const tightwire_buffer* buffer,
                                                     size_t* parameter) {
  return c::add_buffer(session, buffer, parameter, __func__);
}

tightwire_status tightwire_device_session_add(tightwire_device_session* session, const char* name, const int64_t* shape,
                                              size_t dimensions, tightwire_type type, size_t* parameter) {
  const tightwire_buffer buffer = c::buffer_of(name, shape, dimensions, type);
  return c::add_buffer(session, &buffer, parameter, __func__);
}

tightwire_status tightwire_device_session_bucket_of(tightwire_device_session* session, size_t parameter,
                                                    size_t* bucket) {
  return c::bucket_of(session, parameter, bucket, __func__);
}

tightwire_status tightwire_device_session_add_bucket(tightwire_device_session* session, const size_t* parameters,
                                                     size_t count, size_t* bucket) {
  return c::add_bucket(session, parameters, count, bucket, __func__);
}

tightwire_status tightwire_device_session_seal(tightwire_device_session* session) { return c::seal(session, __func__); }

tightwire_status tightwire_device_session_start(tightwire_device_session* session, size_t bucket,
                                                void* const* gradients, size_t count, CUstream_st* producer) {
  return c::start(session, bucket, {gradients, count}, __func__, producer);
}

tightwire_status tightwire_device_session_wait(tightwire_device_session* session, size_t bucket, CUstream_st* stream) {
  return c::wait(session, bucket, __func__, stream);
}

tightwire_status tightwire_device_session_all_reduce(tightwire_device_session* session, void* const* gradients,
                                                     size_t count, CUstream_st* stream) {
  return c::all_reduce(session, {gradients, count}, __func__, stream);
}

tightwire_status tightwire_device_session_commit(tightwire_device_session* session, int32_t* kept) {
  return c::commit(session, kept, __func__);
}

tightwire_status tightwire_device_session_rollback(tightwire_device_session* session) {
  return c::rollback(session, __func__);
}

tightwire_status tightwire_device_session_save(tightwire_device_session* session, const void** bytes, size_t* size) {
  return c::save(session, bytes, size, __func__);
}

tightwire_status tightwire_device_session_restore(tightwire_device_session* session, const void* bytes, size_t size) {
  return c::restore(session, bytes, size, __func__);
}

tightwire_status tightwire_device_session_restore_ranks(tightwire_device_session* session, const void* const* states,
                                                        const size_t* sizes, size_t count) {
  return c::restore_ranks(session, states, sizes, count, __func__);
}

tightwire_status tightwire_device_session_description(tightwire_device_session* session, const char** text) {
  return c::description(session, text, __func__);
}

tightwire_status tightwire_device_session_counts(tightwire_device_session* session, size_t* parameters, size_t* buckets,
                                                 uint64_t* steps, size_t* residual_bytes) {
  return c::counts(session, parameters, buckets, steps, residual_bytes, __func__);
}

tightwire_status tightwire_device_session_bucket(tightwire_device_session* session, size_t bucket, size_t* parameters,
                                                 size_t capacity, size_t* count) {
  return c::bucket_parameters(session, bucket, parameters, capacity, count, __func__);
}

void tightwire_device_session_close(tightwire_device_session* session) { c::close(session); }
