// What a Session on a device does from seal to commit. What it takes before the first step is in session_seal.cpp.
#include "session_state.hpp"

#include <algorithm>
#include <thread>

namespace tightwire::cuda {

void Session::State::require_sealed(const char* call) {
  if (failure_) std::rethrow_exception(failure_);
  if (!sealed_) throw bad(std::string(call) + ": call seal() first");
}
const Bucket& Session::State::known(BucketId id) const {
  if (id >= list_.buckets().size()) throw bad("there is no bucket " + std::to_string(id));
  return list_.buckets()[id];
}
void Session::State::require_idle(const char* call) {
  require_sealed(call);
  for (const OnDevice& bucket : on_device_)
    if (bucket.stage == Stage::encoded || !bucket.waited)
      throw bad(std::string(call) + ": " + bucket.name + " was started and not waited for");
}
void Session::State::require_not_under_way(const char* call, const OnDevice& bucket) const {
  if (bucket.stage == Stage::encoded || !bucket.waited)
    throw bad(std::string(call) + ": " + bucket.name + " is under way");
}
/// Of a bucket that is encoded: that all before it are.
void Session::State::require_turn(const char* call, BucketId id) const {
  BucketId missing = next_;
  while (on_device_[missing].stage == Stage::encoded && missing != id) missing = (missing + 1) % on_device_.size();
  if (missing != id)
    throw bad(std::string(call) + ": " + on_device_[id].name + " is exchanged after " + on_device_[missing].name +
              ", which was not started: buckets go in the order of their numbers");
}
void Session::State::require_not_captured(const char* call, Stream stream) const {
  detail::require_not_captured(stream, transport_->rank(), call, "steps differ in more than their data");
}
void Session::State::require_pointers(const char* call, const Bucket& bucket, OnDevice& on_device,
                                      std::span<void* const> data) {
  if (data.size() != bucket.parameters.size())
    throw bad(std::string(call) + ": got " + std::to_string(data.size()) + " pointers for the " +
              std::to_string(bucket.parameters.size()) + " parameters of " + on_device.name);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const Parameter& parameter = list_.parameters()[bucket.parameters[i]];
    if (parameter.count == 0 || (data[i] != nullptr && data[i] == on_device.checked[i])) continue;
    if (data[i] == nullptr) throw bad(std::string(call) + ": the pointer for \"" + parameter.name + "\" is null");
    cudaPointerAttributes attributes{};
    detail::require(cudaPointerGetAttributes(&attributes, data[i]), "cudaPointerGetAttributes", transport_->rank());
    if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
      throw bad(std::string(call) + ": the pointer for \"" + parameter.name + "\" is not to memory of a device");
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device_)
      throw bad(std::string(call) + ": the pointer for \"" + parameter.name + "\" is to memory of device " +
                std::to_string(attributes.device) + "; the Session is on device " + std::to_string(device_));
    on_device.checked[i] = data[i];
  }
}

/// Throws what went wrong on the device, as far as it is known.
void Session::State::check() {
  for (OnDevice& bucket : on_device_) check(bucket);
}
void Session::State::check(OnDevice& bucket) {
  closing([&] {
    channel_->check();
    if (!bucket.used || !bucket.done.reached(transport_->rank())) return;
    channel_->check();  // frames of a round that was given up since are none
    check_report(bucket, bucket.exchange->report());
    if (bucket.drawn) check_report(bucket, bucket.drawn->report());
    for (const OnDevice::Hosted& each : bucket.hosted)
      if (const detail::Report* report = each.exchange->report()) check_report(bucket, *report);
  });
}
void Session::State::check_report(const OnDevice& bucket, const detail::Report& report) {
  if (report.refused == 0) return;
  try {
    frame::check(*host_, reinterpret_cast<const std::byte*>(&report.got), report.expected);
  } catch (const Error& error) {
    throw Error(error.code(), where() + bucket.name + ": " + error.what());
  }
  throw Error(Errc::corrupt, where() + bucket.name + ": a frame was not what it had to be");
}

/// Where residuals are in this step, and pointers in the places that the exchange looks at.
ReductionInput Session::State::open(Bucket& bucket, BucketPart& part) {
  const auto residual_of = [&](std::size_t position) {
    const ParameterMemory& memory = parameter_memory_[bucket.parameters[position]];
    return memory.residual == ParameterMemory::kNone ? Residual{} : memory_.open(memory.residual);
  };
  if (bucket.sharded()) {
    open_shards(bucket, residual_of(0), transport_->rank());
  } else {
    for (std::size_t i = 0; i < part.positions.size(); ++i) {
      part.pointers[i] = bucket.pointers[part.positions[i]];
      part.senders[i] = residual_of(part.positions[i]);
      if (!part.momenta.empty())
        part.momenta[i] = memory_.open(parameter_memory_[bucket.parameters[part.positions[i]]].momentum);
    }
  }
  return {.data = part.pointers,
          .senders = part.senders,
          .owner = bucket.has_owner_residual ? memory_.open(bucket.owner_region) : Residual{},
          .step = steps_,
          .rollbacks = rollbacks_,
          .sequence = bucket.sequence,
          .use = bucket.use,
          .seed = options_.seed,
          .committed = committed_,
          .momenta = part.momenta};
}
/// Of the parameters that are not sparse, and of the mean that all ranks hold.
void Session::State::gather_momentum(const Bucket& bucket) {
  for (const BucketPart* part : {&bucket.blocks, &bucket.matrices})
    for (const std::size_t position : part->positions) {
      const Parameter& parameter = list_.parameters()[bucket.parameters[position]];
      const Residual state = memory_.open(parameter_memory_[bucket.parameters[position]].momentum);
      detail::apply_momentum({.data = static_cast<std::byte*>(bucket.pointers[position]),
                              .type = parameter.type,
                              .count = parameter.count,
                              .before = state.before,
                              .after = state.after,
                              .momentum = momentum()},
                             transport_->rank(), exchanges_->get());
    }
}

void Session::State::run(ParameterId id, void* data, Stream stream) {
  require_sealed("run");
  if (id >= list_.parameters().size()) throw bad("run: there is no parameter " + std::to_string(id));
  const BucketId bucket = list_.bucket_of(id);
  wait(bucket, start(bucket, {&data, 1}, stream), stream);
}

std::uint32_t Session::State::start(BucketId id, std::span<void* const> data, Stream producer) {
  require_sealed("start");
  require_not_captured("start", producer);
  known(id);
  Bucket& bucket = list_.buckets()[id];
  OnDevice& on_device = on_device_[id];
  check(on_device);
  require_not_under_way("start", on_device);
  require_pointers("start", bucket, on_device, data);
  std::copy(data.begin(), data.end(), bucket.pointers.begin());
  return closing([&] {
    const int rank = transport_->rank();
    on_device.ready.record(producer, rank);
    on_device.ready.wait(encodes_->get(), rank);
    if (on_device.used) on_device.done.wait(encodes_->get(), rank);  // frames and residuals of the last time
    on_device.exchange->encode(open(bucket, bucket.blocks), encodes_->get());
    for (const OnDevice::Hosted& each : on_device.hosted) each.exchange->begin(open(bucket, *each.part));
    if (on_device.drawn) on_device.drawn->encode(open(bucket, bucket.drawn), encodes_->get());
    on_device.encoded.record(encodes_->get(), rank);
    on_device.stage = Stage::encoded;
    on_device.waited = false;
    const std::uint32_t sequence = bucket.sequence++;
    ++bucket.use;
    Statistics statistics = on_device.exchange->statistics();
    if (on_device.drawn) statistics += on_device.drawn->statistics();
    statistics.calls = 1;
    total_ += statistics;
    ++step_calls_;
    issue();
    return sequence;
  });
}

/// Rounds of all ranks go out in the same order, since nothing but it tells them apart. What goes through the host
/// holds it up until the host knows what to send; that is waited for until a bucket has had its turn, if there is one.
void Session::State::issue(const OnDevice* until) {
  const int rank = transport_->rank();
  while (on_device_[next_].stage == Stage::encoded) {
    OnDevice& bucket = on_device_[next_];
    if (!std::exchange(bucket.on_its_way, true)) {
      bucket.encoded.wait(exchanges_->get(), rank);
      bucket.exchange->exchange(*channel_, exchanges_->get());
      bucket.turn.record(exchanges_->get(), rank);
      bucket.has_turn = false;
    }
    const bool waits = until != nullptr && until->stage == Stage::encoded;
    if (!exchange_hosted(bucket, waits)) return;
    bucket.on_its_way = false;
    if (bucket.drawn) bucket.drawn->exchange(*channel_, exchanges_->get());
    if (options_.momentum) gather_momentum(list_.buckets()[next_]);
    bucket.done.record(exchanges_->get(), rank);
    bucket.stage = Stage::exchanged;
    bucket.used = true;
    next_ = (next_ + 1) % on_device_.size();
  }
}

/// Returns whether all of it is on the stream.
bool Session::State::exchange_hosted(OnDevice& bucket, bool waits) {
  if (waits && !bucket.has_turn) bucket.progressed = Clock::now();
  for (OnDevice::Hosted& each : bucket.hosted) {
    detail::HostedExchange& exchange = *each.exchange;
    if (exchange.finished()) continue;  // before, in this turn
    while (!exchange.finished()) {
      if (exchange.advance()) {
        bucket.progressed = Clock::now();
        continue;
      }
      if (!waits) return false;
      channel_->check();
      require_progress(bucket, exchange);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    Statistics statistics = exchange.statistics();
    each.nonfinite += std::exchange(statistics.nonfinite, 0);
    total_ += statistics;
  }
  return true;
}
/// Time counts from the turn of the bucket: what the rounds of earlier ones take is not its own, and has limits of its
/// own. That it does not come since something was not encoded has none but this.
void Session::State::require_progress(OnDevice& bucket, const detail::HostedExchange& exchange) {
  const int rank = transport_->rank();
  if (!bucket.has_turn) {
    bucket.has_turn = bucket.turn.reached(rank);
    const auto holds_up = [&](const OnDevice& each) {
      const bool comes_later = each.stage == Stage::encoded && !each.on_its_way;
      return !comes_later && !each.encoded.reached(rank);
    };
    if (bucket.has_turn || std::none_of(on_device_.begin(), on_device_.end(), holds_up))
      bucket.progressed = Clock::now();
  }
  if (Clock::now() - bucket.progressed < options_.timeout) return;
  std::string awaited = exchange.waiting_for();
  if (!bucket.has_turn) {
    const auto stands_still = [&](const OnDevice& each) { return !each.ready.reached(rank); };
    const auto found = std::find_if(on_device_.begin(), on_device_.end(), stands_still);
    const OnDevice* const late = stands_still(bucket) || found == on_device_.end() ? &bucket : &*found;
    awaited = stands_still(*late) ? "the producer's stream, which did not come to the start of " + late->name
                                  : "the device to encode";
  }
  throw Error(Errc::timeout, where() + bucket.name + ": no progress for " + std::to_string(options_.timeout.count()) +
                                 " ms, waiting for " + awaited);
}

void Session::State::wait(BucketId id, std::uint32_t sequence, Stream stream) {
  require_sealed("wait");
  require_not_captured("wait", stream);
  OnDevice& bucket = on_device_[id];
  check(bucket);
  if (list_.buckets()[id].sequence != sequence + 1)
    throw bad("wait: " + bucket.name + " was started again after this handle was made");
  if (bucket.stage == Stage::encoded) {
    require_turn("wait", id);
    closing([&] { issue(&bucket); });
  }
  closing([&] { bucket.done.wait(stream, transport_->rank()); });
  bucket.waited = true;
}

void Session::State::all_reduce(std::span<void* const> data, Stream stream) {
  require_sealed("all_reduce");
  require_not_captured("all_reduce", stream);
  if (data.size() != list_.parameters().size())
    throw bad("all_reduce: got " + std::to_string(data.size()) + " pointers for " +
              std::to_string(list_.parameters().size()) + " parameters");
  for (const OnDevice& bucket : on_device_) require_not_under_way("all_reduce", bucket);
  if (next_ != 0) throw bad("all_reduce: this step has started " + on_device_[next_ - 1].name + " by itself");
  for (BucketId id = 0; id < on_device_.size(); ++id) {
    Bucket& bucket = list_.buckets()[id];
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) bucket.pointers[i] = data[bucket.parameters[i]];
    require_pointers("all_reduce", bucket, on_device_[id], bucket.pointers);
  }
  for (BucketId id = 0; id < on_device_.size(); ++id) {
    const std::uint32_t sequence = start(id, list_.buckets()[id].pointers, stream);
    if (id + 1 == on_device_.size()) wait(id, sequence, stream);  // exchanged last, on the same stream as the others
    on_device_[id].waited = true;
  }
}

/// Asks again and again in place of waiting in a call of CUDA's, which would not end where a peer is lost.
void Session::State::wait_for_streams() {
  const TimePoint until = deadline_after(options_.timeout);
  for (const auto* stream : {encodes_.get(), exchanges_.get(), copies_.get()})
    while (true) {
      check();
      const cudaError_t status = cudaStreamQuery(stream->get());
      if (status == cudaSuccess) break;
      if (status != cudaErrorNotReady) detail::require(status, "cudaStreamQuery", transport_->rank());
      if (Clock::now() >= until)
        throw Error(Errc::timeout,
                    where() + "the device was not done after " + std::to_string(options_.timeout.count()) + " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  channel_->check();  // what was given up has ended too
}
void Session::State::synchronize() {
  require_sealed("synchronize");
  OnDevice* last = nullptr;
  for (std::size_t turn = 0; turn < on_device_.size(); ++turn) {
    const BucketId id = (next_ + turn) % on_device_.size();
    if (on_device_[id].stage != Stage::encoded) continue;
    require_turn("synchronize", id);
    last = &on_device_[id];
  }
  if (last != nullptr) closing([&] { issue(last); });
  settle();
}
/// Waits for what is on the streams, and counts what came of it.
void Session::State::settle() {
  closing([&] { wait_for_streams(); });
  check();
  total_.nonfinite += take_nonfinite();
}
/// Of what has ended on the device and was not taken yet.
std::uint64_t Session::State::take_nonfinite() {
  std::uint64_t sum = 0;
  for (OnDevice& bucket : on_device_) {
    const std::uint64_t seen = bucket.nonfinite();
    sum += seen - std::exchange(bucket.nonfinite_seen, seen);
  }
  step_nonfinite_ += sum;
  return sum;
}

bool Session::State::commit() {
  require_idle("commit");
  check();
  if (options_.nonfinite != NonFinitePolicy::propagate) settle();
  if (options_.nonfinite == NonFinitePolicy::error && step_nonfinite_ != 0)
    throw Error(Errc::nonfinite, where() + "this step held " + std::to_string(step_nonfinite_) +
                                     " non-finite elements, counted over all ranks; roll it back");
  const bool keep = options_.nonfinite != NonFinitePolicy::skip_step || step_nonfinite_ == 0;
  end_step(keep);
  return keep;
}
void Session::State::rollback() {
  require_idle("rollback");
  check();
  if (options_.error_feedback && !memory_.can_roll_back())
    throw Error(Errc::unsupported, where() + "rollback: the Session was made with rollback = false");
  // Or what this step met would be charged to the next, by ranks that did not ask before.
  if (options_.nonfinite != NonFinitePolicy::propagate) settle();
  end_step(false);
}
void Session::State::end_step(bool keep) {
  keep ? memory_.commit() : memory_.rollback();
  for (const OnDevice& bucket : on_device_)
    for (const OnDevice::Hosted& each : bucket.hosted) each.exchange->end_step(keep);
  for (Bucket& bucket : list_.buckets()) bucket.end_step(keep);
  ++steps_;
  keep ? static_cast<void>(++committed_) : static_cast<void>(++rollbacks_);
  step_nonfinite_ = 0;
  step_calls_ = 0;
  next_ = 0;
}

std::vector<float> Session::State::copy_of(ErrorMemory::Region region) {
  settle();
  const std::span<const std::byte> on_device = memory_.committed_bytes(region);
  std::vector<float> values(on_device.size() / sizeof(float));
  detail::require(cudaMemcpy(values.data(), on_device.data(), on_device.size(), cudaMemcpyDeviceToHost), "cudaMemcpy",
                  transport_->rank());
  return values;
}
/// Residuals of the last commit become what they are said to be, as far as that was left to the next step.
void Session::State::settle_residuals() {
  for (const Bucket& bucket : list_.buckets()) bucket.settle_residuals();
}
std::vector<float> Session::State::sender_residual(ParameterId id) {
  require_sealed("sender_residual");
  if (id >= list_.parameters().size()) throw bad("there is no parameter " + std::to_string(id));
  const ErrorMemory::Region region = parameter_memory_[id].residual;
  if (region == ParameterMemory::kNone) return {};
  const BucketId bucket = list_.bucket_of(id);
  const bool has_matrices = !list_.buckets()[bucket].matrices.positions.empty();
  if (has_matrices || !memory_.can_roll_back()) require_not_under_way("sender_residual", on_device_[bucket]);
  if (has_matrices) {
    settle();
    closing([&] { list_.buckets()[bucket].settle_residuals(); });
  }
  return copy_of(region);
}
std::vector<float> Session::State::owner_residual(BucketId id) {
  require_sealed("owner_residual");
  if (!known(id).has_owner_residual) return {};
  if (!memory_.can_roll_back()) require_not_under_way("owner_residual", on_device_[id]);
  return copy_of(known(id).owner_region);
}

}  // namespace tightwire::cuda
