// The calls of a Session: one at a time, and about its device.
#include "session_state.hpp"

namespace tightwire::cuda {
namespace {

/// While it lives, the calling thread has the Session to itself, and works on its device.
struct Turn {
  std::lock_guard<std::mutex> lock;
  detail::BesideCaptures beside_captures;
  detail::OfDevice device;
  template <class State>
  explicit Turn(State& state) : lock(state.mutex_), device(state.transport_->device(), state.transport_->rank()) {}
};

}  // namespace

void Handle::wait(Stream stream) {
  Session::State& state = *session_->state_;
  const Turn turn(state);
  state.wait(bucket_, sequence_, stream);
}

Session::Session(std::shared_ptr<Transport> transport, SessionOptions options, MakeCoder make)
    : state_(std::make_unique<State>(std::move(transport), std::move(options), std::move(make))) {}
Session::~Session() {
  const detail::BesideCaptures beside_captures;
  state_.reset();
}

ParameterId Session::add(std::string name, std::vector<std::int64_t> shape, ElementType type) {
  const Turn turn(*state_);
  return state_->add({.name = std::move(name), .shape = std::move(shape), .type = type});
}
ParameterId Session::add(std::string name, std::vector<std::int64_t> shape, ElementType type, Operation operation,
                         int root) {
  const Turn turn(*state_);
  return state_->add(
      {.name = std::move(name), .shape = std::move(shape), .type = type, .operation = operation, .root = root});
}
BucketId Session::add_bucket(std::span<const ParameterId> parameters) {
  const Turn turn(*state_);
  return state_->add_bucket(parameters);
}
void Session::seal() {
  const Turn turn(*state_);
  state_->seal();
}
Handle Session::start(BucketId id, std::span<void* const> data, Stream producer) {
  const Turn turn(*state_);
  return {*this, id, state_->start(id, data, producer)};
}
void Session::all_reduce(std::span<void* const> data, Stream stream) {
  const Turn turn(*state_);
  state_->all_reduce(data, stream);
}
void Session::run(ParameterId id, void* data, Stream stream) {
  const Turn turn(*state_);
  state_->run(id, data, stream);
}
bool Session::commit() {
  const Turn turn(*state_);
  return state_->commit();
}
void Session::rollback() {
  const Turn turn(*state_);
  state_->rollback();
}
void Session::synchronize() {
  const Turn turn(*state_);
  state_->synchronize();
}
std::vector<std::byte> Session::save() {
  const Turn turn(*state_);
  return state_->save();
}
void Session::restore(std::span<const std::byte> own) {
  const Turn turn(*state_);
  state_->restore({&own, 1}, true);
}
void Session::restore(std::span<const std::span<const std::byte>> ranks) {
  const Turn turn(*state_);
  state_->restore(ranks, false);
}

int Session::rank() const noexcept { return state_->transport_->rank(); }
int Session::size() const noexcept { return state_->transport_->size(); }
const std::vector<Parameter>& Session::parameters() const noexcept { return state_->list_.parameters(); }
std::size_t Session::buckets() const noexcept { return state_->list_.buckets().size(); }
BucketId Session::bucket_of(ParameterId id) const {
  const Turn turn(*state_);
  state_->require_sealed("bucket_of");
  if (id >= parameters().size()) throw state_->bad("there is no parameter " + std::to_string(id));
  return state_->list_.bucket_of(id);
}
const std::vector<ParameterId>& Session::bucket_parameters(BucketId id) const { return state_->known(id).parameters; }
const BucketPlan& Session::bucket_plan(BucketId id) const { return state_->known(id).plan; }
std::uint64_t Session::steps() const noexcept { return state_->steps_; }
const Statistics& Session::total() const noexcept { return state_->total_; }
std::size_t Session::residual_bytes() const noexcept { return state_->memory_.bytes(); }
std::size_t Session::frame_bytes() const noexcept { return state_->frame_bytes_; }
std::vector<float> Session::sender_residual(ParameterId id) {
  const Turn turn(*state_);
  return state_->sender_residual(id);
}
std::vector<float> Session::owner_residual(BucketId id) {
  const Turn turn(*state_);
  return state_->owner_residual(id);
}
std::string Session::description() const { return state_->description(); }
std::string Session::transport() const { return state_->transport(); }
std::uint64_t Session::staged_bytes() const noexcept { return state_->staged_bytes(); }

}  // namespace tightwire::cuda
