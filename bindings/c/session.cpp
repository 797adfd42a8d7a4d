#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

#include "session_calls.hpp"
#include "session_file.hpp"
#include "session_specification.hpp"

namespace c = tightwire::c;

struct tightwire_session : c::SessionHandle<tightwire::Session, tightwire::Handle> {};

namespace {

tightwire_session* opened(const std::shared_ptr<tightwire::Transport>& transport, tightwire::SessionOptions options) {
  auto session = std::make_unique<tightwire_session>();
  session->session = std::make_unique<tightwire::Session>(transport, std::move(options));
  return session.release();
}

const tightwire::StepStatistics& of_scope(const tightwire::Session& session, tightwire_scope scope) {
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
  return c::guarded([&] {
    constexpr const char* kCall = "tightwire_session_open";
    c::require(specification != nullptr && session != nullptr, kCall, "an argument is null");
    const auto& transport = c::usable(communicator, kCall).transport;
    *session = opened(transport, c::parse_session(specification, transport->size()));
  });
}

tightwire_status tightwire_session_open_file(tightwire_communicator* communicator, const char* path,
                                             tightwire_session** session) {
  return c::guarded([&] {
    constexpr const char* kCall = "tightwire_session_open_file";
    c::require(path != nullptr && session != nullptr, kCall, "an argument is null");
    const auto& transport = c::usable(communicator, kCall).transport;
    *session = opened(transport, c::read_session_file(path, transport->size()));
  });
}

tightwire_status tightwire_session_scale_residuals(tightwire_session* session, float factor) {
  return c::guarded([&] { c::session_of(session, "tightwire_session_scale_residuals").scale_residuals(factor); });
}

tightwire_status tightwire_session_statistics(tightwire_session* session, tightwire_scope scope,
                                              tightwire_statistics* statistics) {
  return c::guarded([&] {
    constexpr const char* kCall = "tightwire_session_statistics";
    const tightwire::StepStatistics& s = of_scope(c::session_of(session, kCall), scope);
    c::require(statistics != nullptr, kCall, "the output argument is null");
    c::copy_out({.struct_size = 0,
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
                statistics, kCall);
  });
}

tightwire_status tightwire_session_add_buffer(tightwire_session* session, const tightwire_buffer* buffer,
                                              size_t* parameter) {
  return c::add_buffer(session, buffer, parameter, __func__);
}

tightwire_status tightwire_session_add(tightwire_session* session, const char* name, const int64_t* shape,
                                       size_t dimensions, tightwire_type type, size_t* parameter) {
  const tightwire_buffer buffer = c::buffer_of(name, shape, dimensions, type);
  return c::add_buffer(session, &buffer, parameter, __func__);
}

tightwire_status tightwire_session_bucket_of(tightwire_session* session, size_t parameter, size_t* bucket) {
  return c::bucket_of(session, parameter, bucket, __func__);
}

tightwire_status tightwire_session_add_bucket(tightwire_session* session, const size_t* parameters, size_t count,
                                              size_t* bucket) {
  return c::add_bucket(session, parameters, count, bucket, __func__);
}

tightwire_status tightwire_session_set_priority(tightwire_session* session, size_t parameter, int32_t priority) {
  const char* const call = __func__;
  return c::guarded([&] { c::session_of(session, call).set_priority(parameter, priority); });
}

tightwire_status tightwire_session_seal(tightwire_session* session) { return c::seal(session, __func__); }

tightwire_status tightwire_session_start(tightwire_session* session, size_t bucket, void* const* gradients,
                                         size_t count) {
  return c::start(session, bucket, {gradients, count}, __func__);
}

tightwire_status tightwire_session_wait(tightwire_session* session, size_t bucket) {
  return c::wait(session, bucket, __func__);
}

tightwire_status tightwire_session_all_reduce(tightwire_session* session, void* const* gradients, size_t count) {
  return c::all_reduce(session, {gradients, count}, __func__);
}

tightwire_status tightwire_session_commit(tightwire_session* session, int32_t* kept) {
  return c::commit(session, kept, __func__);
}

tightwire_status tightwire_session_rollback(tightwire_session* session) { return c::rollback(session, __func__); }

tightwire_status tightwire_session_save(tightwire_session* session, const void** bytes, size_t* size) {
  return c::save(session, bytes, size, __func__);
}

tightwire_status tightwire_session_restore(tightwire_session* session, const void* bytes, size_t size) {
  return c::restore(session, bytes, size, __func__);
}

tightwire_status tightwire_session_restore_ranks(tightwire_session* session, const void* const* states,
                                                 const size_t* sizes, size_t count) {
  return c::restore_ranks(session, states, sizes, count, __func__);
}

tightwire_status tightwire_session_description(tightwire_session* session, const char** text) {
  return c::description(session, text, __func__);
}

tightwire_status tightwire_session_counts(tightwire_session* session, size_t* parameters, size_t* buckets,
                                          uint64_t* steps, size_t* residual_bytes) {
  return c::counts(session, parameters, buckets, steps, residual_bytes, __func__);
}

tightwire_status tightwire_session_bucket(tightwire_session* session, size_t bucket, size_t* parameters,
                                          size_t capacity, size_t* count) {
  return c::bucket_parameters(session, bucket, parameters, capacity, count, __func__);
}

void tightwire_session_close(tightwire_session* session) { c::close(session); }
