// What a Session on a device does up to the first step.
#include <algorithm>

#include "session_state.hpp"

namespace tightwire::cuda {
namespace {

std::shared_ptr<Transport> given(std::shared_ptr<Transport> transport) {
  if (!transport) throw Error(Errc::invalid_argument, "cuda::Session: the transport is null");
  return transport;
}

}  // namespace

Session::State::State(std::shared_ptr<Transport> transport, SessionOptions options, MakeCoder make)
    : transport_(given(std::move(transport))),
      options_(std::move(options)),
      list_(where(), transport_->size()),
      device_(transport_->device()),
      make_(std::move(make)),
      planned_with_(options_) {
  const auto unsupported = [&](const std::string& what) {
    return Error(Errc::unsupported, where() + "cuda::Session: " + what);
  };
  if (!make_) make_ = [](const Codec& codec, ElementType type) { return make_coder(codec, type); };
  if (options_.plan.share_elements != 0)
    throw bad("cuda::Session: plan.share_elements is " + std::to_string(options_.plan.share_elements) +
              ", but a bucket is exchanged in whole rounds; leave it 0");
  if (options_.momentum.clip_norm != 0.0f)
    throw unsupported("clipping for momentum correction is not on devices; leave momentum.clip_norm 0");
  if (options_.residual != ElementType::f32)
    throw unsupported("residuals on devices are fp32; leave residual as it is");
  if (options_.hierarchy) throw unsupported("hierarchies are not on devices");
  if (options_.codec.automatic()) throw unsupported("codec auto is not on devices; name one");
  if (options_.observer) throw unsupported("observers, such as Telemetry, are not on devices");
  if (static_cast<std::size_t>(transport_->size()) > Coder::kMostSources)
    throw unsupported(std::to_string(transport_->size()) + " ranks, of which a kernel sums no more than " +
                      std::to_string(Coder::kMostSources));
  check_options(options_, where() + "cuda::Session: ");
  planned_with_.plan.share_elements = std::numeric_limits<std::size_t>::max() / 2;  // with room to be rounded up
}

Session::State::~State() {
  end();
  // They have memory of what goes away before the list of buckets does.
  for (const Bucket& bucket : list_.buckets()) bucket.operation.reductions.clear();
}
void Session::State::end() noexcept {
  if (!channel_ || !copies_) return;
  try {
    const detail::OfDevice device(device_, transport_->rank());
    for (const OnDevice& bucket : on_device_)
      if (bucket.stage == Stage::encoded) channel_->abort("its Session ended with " + bucket.name + " under way");
    wait_for_streams();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

/// What is under way, which ends with that; unless it waits for a stream of the caller's that stands still.
void Session::State::give_up(const char* reason) noexcept {
  channel_->abort(reason);
  const TimePoint until = deadline_after(options_.timeout);
  bool ended = true;
  for (const auto* stream : {exchanges_.get(), encodes_.get(), copies_.get()})
    ended = ended && detail::ends_by(stream->get(), until);
  if (ended) return;
  // To free any waits for the whole device.
  for (detail::Memory* const memory : {&residuals_, &frames_, &reports_}) memory->leave();
  for (OnDevice& bucket : on_device_) {
    if (bucket.drawn) bucket.drawn->leave_memory();
    for (const OnDevice::Hosted& each : bucket.hosted) each.exchange->leave_memory();
  }
  host_->leave_memory();
  if (frames_of_host_) frames_of_host_->leave_memory();
  channel_->leave_memory();
}

void Session::State::require_open_for(const char* call) const {
  if (failure_) std::rethrow_exception(failure_);
  if (sealed_) throw bad(std::string(call) + ": the Session is sealed");
}
ParameterId Session::State::add(Parameter parameter) {
  require_open_for("add");
  return list_.add(std::move(parameter));
}
BucketId Session::State::add_bucket(std::span<const ParameterId> parameters) {
  require_open_for("add_bucket");
  return list_.add_bucket(parameters);
}

void Session::State::refuse_what_is_for_hosts(const Bucket& bucket) const {
  if (options_.momentum && !bucket.planned_random.empty())
    throw Error(Errc::unsupported,
                where() + "seal: \"" + list_.parameters()[bucket.planned_random.front().number].name +
                    "\" is drawn at random, for which momentum correction is not on devices; take topk");
  if (options_.plan.algorithm == Algorithm::ring || options_.plan.algorithm == Algorithm::tree)
    throw Error(Errc::unsupported, where() + "seal: " + to_string(options_.plan.algorithm) +
                                       " is not on devices; take automatic, two_shot or one_shot");
}

/// What the device makes must be the plan's bytes.
void Session::State::require_same(const Coder& coder, const PlannedParameter& planned) const {
  if (coder.spec() == planned.coder->spec() && coder.block() == planned.coder->block() &&
      coder.wire_bytes(planned.count) == planned.coder->wire_bytes(planned.count))
    return;
  throw bad("seal: for \"" + list_.parameters()[planned.number].name + "\" the plan has " + planned.coder->spec() +
            ", the device " + coder.spec());
}
std::vector<std::shared_ptr<const Coder>> Session::State::coders(const Bucket& bucket) const {
  std::vector<std::shared_ptr<const Coder>> coders;
  for (const PlannedParameter& planned : bucket.planned) {
    const Parameter& parameter = list_.parameters()[planned.number];
    const Codec& codec = options_.policy.choose(parameter, options_.codec);
    coders.push_back(make_(codec.low_rank() != nullptr ? Codec{} : codec, planned.type));  // of what is no matrix
    require_same(*coders.back(), planned);
  }
  return coders;
}
/// Built-in ones: those of a user's own are known by the codec of a parameter, not by that of its values.
std::vector<std::shared_ptr<const Coder>> Session::State::coders_of_drawn(const Bucket& bucket) const {
  std::vector<std::shared_ptr<const Coder>> coders;
  for (const PlannedParameter& planned : bucket.drawn_elements) {
    coders.push_back(make_coder(planned.coder->spec()));
    require_same(*coders.back(), planned);
  }
  return coders;
}

void Session::State::seal() {
  require_open_for("seal");
  try {
    channel_ = transport_->open_channel(options_.timeout);
    host_ = std::make_unique<detail::HostMessages>(*channel_, options_.timeout);
    const std::uint64_t agreed = agree_on(*host_, host_->next_channel(), options_.timeout, [&] {
      list_.fill_buckets(options_.bucket_bytes);
      parameter_memory_.resize(list_.parameters().size());
      BucketPlanning planning(planned_with_, *host_, memory_, false);
      for (Bucket& bucket : list_.buckets()) planning.plan(bucket, list_.parameters(), parameter_memory_);
      for (const Bucket& bucket : list_.buckets()) refuse_what_is_for_hosts(bucket);
      return description();
    });
    const std::uint64_t run = transport_->rank() == 0 ? new_run() : 0;
    run_ = gather_values(*host_, run, options_.timeout).front();
    prepare(agreed);
  } catch (const std::exception& error) {
    // The other ranks know nothing of it and will start.
    if (channel_) channel_->abort(error.what());
    failure_ = std::current_exception();
    throw;
  }
  sealed_ = true;
}

/// All that takes memory of the device, once the ranks agree.
void Session::State::prepare(std::uint64_t fingerprint) {
  const int rank = transport_->rank(), ranks = transport_->size();
  residuals_ = detail::Memory(memory_.lay_out(options_.rollback), detail::Memory::Kind::device, rank);
  memory_.place(residuals_.data());
  for (const Bucket& bucket : list_.buckets())
    for (const BucketPlan* plan : {&bucket.plan, &bucket.random_plan})
      frame_bytes_ += detail::BucketExchange::frame_bytes(*plan, ranks);
  detail::load_frame_kernels(rank);
  detail::load_random_kernels(rank);
  detail::load_choice_kernels(rank);
  detail::load_product_kernels(rank);
  frames_ = detail::Memory(frame_bytes_, detail::Memory::Kind::device, rank);
  const std::size_t report_bytes = 2 * list_.buckets().size() * sizeof(detail::Report);
  reports_ = detail::Memory(report_bytes, detail::Memory::Kind::pinned, rank);
  if (report_bytes != 0) std::memset(reports_.data(), 0, report_bytes);
  encodes_ = std::make_unique<detail::OwnStream>(rank);
  exchanges_ = std::make_unique<detail::OwnStream>(rank);
  copies_ = std::make_unique<detail::OwnStream>(rank);
  std::byte* frames = frames_.data();
  for (BucketId id = 0; id < list_.buckets().size(); ++id) make_exchanges(id, fingerprint, frames);
}

/// So that none of their kernels is loaded while something runs.
std::vector<std::shared_ptr<const Coder>> Session::State::loaded(std::vector<std::shared_ptr<const Coder>> coders) {
  for (const auto& coder : coders) coder->load();
  return coders;
}

void Session::State::make_exchanges(BucketId id, std::uint64_t fingerprint, std::byte*& frames) {
  const int rank = transport_->rank(), ranks = transport_->size();
  Bucket& bucket = list_.buckets()[id];
  OnDevice& on_device = on_device_.emplace_back(rank);
  const FrameIdentity identity{fingerprint, 0, static_cast<std::uint32_t>(id)};
  const float divisor = options_.average ? static_cast<float>(ranks) : 1.0f;
  auto* const reports = reinterpret_cast<detail::Report*>(reports_.data()) + 2 * id;
  on_device.exchange.emplace(bucket.plan, bucket.planned, loaded(coders(bucket)), identity, divisor,
                             detail::BucketExchange::Place{rank, ranks, frames, reports});
  frames += detail::BucketExchange::frame_bytes(bucket.plan, ranks);
  make_hosted_exchanges(bucket, on_device, identity, divisor);
  if (!bucket.planned_random.empty())
    on_device.drawn.emplace(bucket, loaded(coders_of_drawn(bucket)), identity, divisor,
                            detail::BucketExchange::Place{rank, ranks, frames, reports + 1});
  frames += detail::BucketExchange::frame_bytes(bucket.random_plan, ranks);
  on_device.checked.resize(bucket.parameters.size());
  on_device.name = "bucket " + std::to_string(id) + " (" + list_.parameters()[bucket.parameters.front()].name +
                   (bucket.parameters.size() > 1 ? ", ...)" : ")");
}

/// They are kept where those of a Session on hosts are, so that what they know is saved and restored alike.
void Session::State::make_hosted_exchanges(Bucket& bucket, OnDevice& on_device, const FrameIdentity& identity,
                                           float divisor) {
  const auto add = [&](std::unique_ptr<detail::HostedExchange> exchange, BucketPart& part) {
    on_device.hosted.push_back({exchange.get(), &part});
    bucket.operation.reductions.push_back(std::move(exchange));
  };
  if (bucket.planned_sparse.empty() && bucket.planned_matrices.empty()) return;
  if (!frames_of_host_)
    frames_of_host_ = std::make_unique<detail::HostMessages>(*channel_, options_.timeout, exchanges_->get());
  const int rank = transport_->rank();
  if (!bucket.planned_sparse.empty())
    add(std::make_unique<detail::SparseExchange>(
            bucket.sparse_plan, identity, divisor,
            detail::SparseExchange::Place{rank, *frames_of_host_, encodes_->get(), exchanges_->get(), copies_->get(),
                                          options_.timeout, momentum()}),
        bucket.chosen);
  if (bucket.planned_matrices.empty()) return;
  detail::LowRankExchange::Inner::Identities identities;
  identities.fill(identity);
  for (std::size_t i = 0; i < identities.size(); ++i)  // apart from blocks and from each other
    identities[i].first_chunk = 256 + static_cast<std::uint32_t>(i);
  add(std::make_unique<detail::LowRankExchange>(
          bucket.low_rank_plan, identities, divisor, options_.seed,
          detail::LowRankExchange::Place{
              *frames_of_host_, *channel_, {rank, encodes_->get(), exchanges_->get()}, transport_->size()}),
      bucket.matrices);
}

std::string Session::State::transport() const {
  std::string text = transport_->describe();
  const auto any = [&](const auto& what) {
    return sealed_ && std::any_of(list_.buckets().begin(), list_.buckets().end(), what);
  };
  if (any([](const Bucket& bucket) { return !bucket.planned_sparse.empty(); }))
    text += "; chosen elements through the host";
  if (any([](const Bucket& bucket) { return !bucket.planned_matrices.empty(); })) text += "; factors through the host";
  return text;
}
std::uint64_t Session::State::staged_bytes() const noexcept {
  std::uint64_t bytes = channel_ ? channel_->staged_bytes() : 0;
  for (const OnDevice& bucket : on_device_)
    for (const OnDevice::Hosted& each : bucket.hosted) bytes += each.exchange->host_bytes();
  const bool counts_frames = channel_ && channel_->staged_bytes() != 0;
  return bytes + (frames_of_host_ && !counts_frames ? frames_of_host_->posted_bytes() : 0);
}

std::string Session::State::description() const {
  return tightwire::detail::describe(options_, transport_->size(), list_.parameters(), list_.buckets());
}

}  // namespace tightwire::cuda
