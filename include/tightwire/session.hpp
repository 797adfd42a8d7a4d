#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/automatic_codec.hpp>
#include <tightwire/automatic_nodes.hpp>
#include <tightwire/bucket.hpp>
#include <tightwire/bucket_opening.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/detail/first_error.hpp>
#include <tightwire/engine.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/gradient_clipping.hpp>
#include <tightwire/host/momentum.hpp>
#include <tightwire/parameter_list.hpp>
#include <tightwire/session_description.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/session_state.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire {

class Session;

/// A reduction that was started. Wait for it before its buffers are read, written or freed, and before the Session
/// ends.
class Handle {
 public:
  /// Returns when the buffers hold the result. May be called again. Throws what ended the reduction.
  void wait();

 private:
  friend class Session;
  Handle(Session& session, BucketId bucket, std::uint32_t sequence)
      : session_(&session), bucket_(bucket), sequence_(sequence) {}
  Session* session_;
  BucketId bucket_;
  std::uint32_t sequence_;
};

/// Keeps the gradients of a model in step on all ranks.
///
///     Session session(transport, {.codec = Int8{}});
///     for (...) session.add(name, shape);
///     session.seal();
///     for (each step) { session.all_reduce(gradients); if (session.commit()) optimizer.step(); }
///
/// After `all_reduce` or `Handle::wait` every rank holds the same bytes. One thread at a time may call it, except that
/// one may wait for handles while another one starts further buckets. An error of the transport or of a peer closes it:
/// every later call throws the same error.
class Session {
 public:
  /// Throws Error(invalid_argument) without a transport, for a timeout that is not above 0, for skip_step where a step
  /// cannot be rolled back, and for momentum correction that makes no sense.
  explicit Session(std::shared_ptr<Transport> transport, SessionOptions options = {})
      : transport_(given(std::move(transport))), options_(std::move(options)), list_(where(), transport_->size()) {
    check_options(options_, where() + "Session: ");
    channel_ = transport_->next_channel();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    if (!engine_) return;
    bool unfinished = false;
    for (const Bucket& bucket : list_.buckets()) unfinished = unfinished || engine_->running(bucket.operation);
    if (unfinished) transport_->abort("its Session ended with reductions under way");
    engine_.reset();
  }

  /// Adds a parameter. Same order, names, shapes and types on every rank. Throws Error(invalid_argument) for a negative
  /// dimension, more elements than memory could hold, a name used twice, or after `seal`.
  ParameterId add(std::string name, std::vector<std::int64_t> shape, ElementType type = ElementType::f32) {
    require_open_for("add");
    return list_.add({.name = std::move(name), .shape = std::move(shape), .type = type});
  }
  /// Adds a buffer for another operation, with a bucket of its own (`bucket_of`): of reduce_scatter and all_gather the
  /// whole of it, rank r's shard its part number r, so that results come where NCCL has them in place; of broadcast
  /// with the rank it comes from. `start` it, or call `run`. One-dimensional buffers are exact by the default policy:
  /// give {ranks, shard}. Contributions have error feedback as in all_reduce, sums of reduce_scatter stay exact. For
  /// TopK, RandomK, PowerSgd and momentum correction `seal` throws Error(unsupported); Error(invalid_argument) for
  /// elements that are no multiple of the ranks.
  ParameterId add(std::string name, std::vector<std::int64_t> shape, ElementType type, Operation operation,
                  int root = 0) {
    require_open_for("add");
    return list_.add(
        {.name = std::move(name), .shape = std::move(shape), .type = type, .operation = operation, .root = root});
  }

  /// What `start` has started goes on in the order of parameters' addition, as the next forward pass needs them, but
  /// those of a higher priority first; of a bucket its most urgent one counts. 0 by default. Throws
  /// Error(invalid_argument) for an unknown parameter and after `seal`.
  void set_priority(ParameterId id, int priority) {
    require_open_for("set_priority");
    list_.set_priority(id, priority);
  }

  /// Declares that these parameters are reduced by one call. Throws Error(invalid_argument) for no parameter, an
  /// unknown one or one that is in a bucket already, for too many buckets, and after `seal`.
  BucketId add_bucket(std::span<const ParameterId> parameters) {
    require_open_for("add_bucket");
    return list_.add_bucket(parameters);
  }

  /// Plans everything, takes all memory and agrees with the other ranks. Collective. Throws Error(mismatch) on every
  /// rank that names two ranks and the first thing they differ in, or the rank that cannot plan and why (that one
  /// throws its own error); Error(timeout) when a rank does not come. An error closes the Session.
  void seal() {
    require_open_for("seal");
    try {
      options_.hierarchy = hierarchy_in_force(*transport_, channel_, options_);
      if (options_.codec.automatic()) options_.codec = choose_codec<Session>(transport_, channel_, options_, list_);
      fingerprint_ = agree_on(*transport_, channel_, options_.timeout, [&] {
        list_.fill_buckets(options_.bucket_bytes);
        list_.order_buckets();
        parameter_memory_.resize(parameters().size());
        plan_buckets(list_.buckets(), parameters(), options_, *transport_, memory_, parameter_memory_);
        return description() + agreement_of(options_.observer);
      });
      const auto buckets = static_cast<std::uint32_t>(list_.buckets().size());
      const Chosen chosen = agree_on_channels(*transport_, channel_, Channels::kKinds * buckets, options_.timeout);
      first_channel_ = chosen.first_channel;
      run_ = chosen.run;
    } catch (const std::exception&) {
      failure_ = std::current_exception();
      throw;
    }
    try {
      prepare();
      if (options_.observer) options_.observer->sealed(*this, transport_);
    } catch (const std::exception& error) {
      // The other ranks know nothing of it and will start.
      transport_->abort(error.what());
      failure_ = std::current_exception();
      engine_.reset();
      throw;
    }
  }

  /// Starts the reduction of a bucket, in place: one pointer per parameter of the bucket, in the order of the bucket.
  /// Ranks may start buckets in different orders. Until `wait` the buffers are the Session's. Throws
  /// Error(invalid_argument) for a null pointer, a wrong number of pointers, or a bucket that is under way;
  /// Error(unsupported) where the whole gradient is to be clipped, and over a transport of one thread (`run` works).
  Handle start(BucketId id, std::span<void* const> data) { return launch(id, data, true); }

  /// The operation of a parameter that has a bucket of its own, on its buffer. Throws as `start` and `Handle::wait` do.
  void run(ParameterId id, void* data) {
    require_sealed("run");
    if (id >= parameters().size()) throw bad("run: there is no parameter " + std::to_string(id));
    launch(bucket_of(id), {&data, 1}, false).wait();
  }

  /// Reduces all parameters, in place: one pointer per parameter, in order of addition. Those of other operations go
  /// through theirs.
  void all_reduce(std::span<void* const> data) {
    const TimePoint began = Clock::now();
    require_sealed("all_reduce");
    if (data.size() != parameters().size())
      throw bad("all_reduce: got " + std::to_string(data.size()) + " pointers for " +
                std::to_string(parameters().size()) + " parameters");
    for (const Bucket& bucket : list_.buckets()) {
      require_not_started("all_reduce", bucket);
      for (const ParameterId id : bucket.parameters) require_pointer("all_reduce", id, data[id]);
    }
    if (options_.momentum.clip_norm != 0.0f) detail::clip(parameters(), data, options_.momentum.clip_norm, size());
    detail::FirstError observers;  // must not keep a bucket from the other ranks
    for (Bucket& bucket : list_.buckets()) {
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) bucket.pointers[i] = data[bucket.parameters[i]];
      if (options_.observer) observers.catching([&] { options_.observer->started(*this, bucket); });
      begin(bucket, false);
    }
    for (Bucket& bucket : list_.buckets()) observers.catching([&] { finish(bucket); });
    step_.blocked_seconds += seconds_since(began);
    observers.rethrow();
    for (const Bucket& bucket : list_.buckets()) require_finite(bucket);
  }

  /// Reduces all parameters, fp32, lying one behind the other in order of addition.
  void all_reduce(std::span<float> gradient) {
    require_sealed("all_reduce");
    flat_.resize(parameters().size());
    std::size_t at = 0;
    for (ParameterId id = 0; id < parameters().size(); ++id) {
      if (parameters()[id].type != ElementType::f32)
        throw bad("all_reduce: \"" + parameters()[id].name + "\" is " + std::string(to_string(parameters()[id].type)) +
                  ", not fp32");
      flat_[id] = gradient.data() + at;
      at += parameters()[id].count;
    }
    if (at != gradient.size())
      throw bad("all_reduce: got " + std::to_string(gradient.size()) + " elements for parameters of " +
                std::to_string(at));
    all_reduce(flat_);
  }

  /// Ends the step and keeps its residuals. Returns false where the policy skips the step, which then was rolled back
  /// on every rank alike: the optimizer must not use the gradients.
  bool commit() {
    require_idle("commit");
    if (options_.nonfinite == NonFinitePolicy::skip_step && step_.nonfinite != 0) {
      end_step(false);
      return false;
    }
    end_step(true);
    return true;
  }

  /// Ends the step as if it had not happened: residuals are those of the last commit. Every rank must do the same.
  /// Throws Error(unsupported) without SessionOptions::rollback.
  void rollback() {
    require_idle("rollback");
    if (options_.error_feedback && !memory_.can_roll_back())
      throw Error(Errc::unsupported, where() + "rollback: the Session was made with rollback = false");
    end_step(false);
  }

  /// Multiplies residuals and momenta: by a new loss scale over the old one, or by 0. Between steps, on every rank
  /// alike. Over nodes and with momentum correction results would differ otherwise, and the next reduction throws
  /// Error(mismatch); else what ranks have left of earlier steps would only count for other amounts.
  void scale_residuals(float factor) {
    require_idle("scale_residuals");
    if (step_.calls != 0 || !std::isfinite(factor))
      throw bad("scale_residuals: the factor must be finite, and the step committed or rolled back first");
    for (const Bucket& bucket : list_.buckets()) bucket.settle_residuals();
    memory_.scale(factor);
    if (factor != 1.0f && (options_.hierarchy || options_.momentum))
      scaled_ = fingerprint(std::to_string(scaled_) + "*" + std::to_string(std::bit_cast<std::uint32_t>(factor)));
  }

  /// Everything of this rank that later steps depend on, apart from the model: residuals, momenta, factors, counters,
  /// as of the last step. Restored, training goes on bit for bit. Throws Error(invalid_argument) amid a step.
  std::vector<std::byte> save() const {
    require_idle("save");
    if (step_.calls != 0) throw bad("save: commit the step or roll it back first");
    for (const Bucket& bucket : list_.buckets()) bucket.settle_residuals();
    return detail::save(memory_view(), {steps_, committed_, rollbacks_, run_});
  }
  /// Takes up what this rank saved in a job of as many ranks. The Session is sealed and between steps; parameters have
  /// the same names and sizes as then, in any order; a codec may be another one where residuals stay where they are,
  /// with as many elements per owner and in the same basis. Collective. Throws Error(corrupt) for bytes that are not a
  /// state, Error(mismatch) where parameters differ and on ranks that find another in error or with the state of
  /// another step or run, Error(invalid_argument) for the state of another rank, or where something would be lost.
  /// Nothing is changed then.
  void restore(std::span<const std::byte> own) { restore({&own, 1}, true); }
  /// The same from what all ranks of a job of any number of ranks saved, in any order, flat or over nodes: residuals
  /// are handed on so that nothing is lost.
  void restore(std::span<const std::span<const std::byte>> ranks) { restore(ranks, false); }

  int rank() const noexcept { return transport_->rank(); }
  int size() const noexcept { return transport_->size(); }
  const std::vector<Parameter>& parameters() const noexcept { return list_.parameters(); }
  std::size_t buckets() const noexcept { return list_.buckets().size(); }
  /// Of a sealed Session. Throws Error(invalid_argument) for an unknown parameter.
  BucketId bucket_of(ParameterId id) const {
    require_sealed("bucket_of");
    if (id >= parameters().size()) throw bad("there is no parameter " + std::to_string(id));
    return list_.bucket_of(id);
  }
  /// Whose pointers `start` wants, in this order.
  const std::vector<ParameterId>& bucket_parameters(BucketId id) const { return known(id).parameters; }
  /// Of what is encoded in blocks: elements that are chosen or drawn, and factors, have messages of their own.
  const BucketPlan& bucket_plan(BucketId id) const { return known(id).plan; }
  std::uint64_t steps() const noexcept { return steps_; }
  /// Those in force: of a sealed Session the codec that Auto chose.
  const SessionOptions& options() const noexcept { return options_; }

  /// Of the reductions since the last commit or rollback that were waited for.
  const StepStatistics& step_statistics() const noexcept { return step_; }
  /// Of the last step that ended, and of all that ended.
  const StepStatistics& last_step() const noexcept { return last_step_; }
  const StepStatistics& total() const noexcept { return total_; }
  /// Of the last reduction of a bucket that was waited for.
  const Statistics& bucket_statistics(BucketId id) const { return known(id).last; }
  /// Columns of the factors of PowerSgd in the last reduction of a bucket; 0 where it has none.
  std::size_t factor_rank(BucketId id) const {
    std::size_t rank = 0;
    for (const auto& reduction : known(id).operation.reductions) rank = std::max(rank, reduction->factor_rank());
    return rank;
  }
  /// Memory for residuals, and for frames of a bucket, in bytes.
  std::size_t residual_bytes() const noexcept { return memory_.bytes(); }
  std::size_t frame_bytes(BucketId id) const { return known(id).frame_bytes(); }
  /// The residuals of the last commit, copied: what this rank's contributions to a parameter lost, and what the sums it
  /// owns in a bucket lost (in the order of its shares); `most`: of no more elements. Empty where nothing can be lost.
  /// With rollback = false there is one copy, which is that of the step so far. Throws Error(invalid_argument) while
  /// the bucket is under way, for such a copy and for a parameter beside or in matrices of PowerSgd.
  std::vector<float> sender_residual(ParameterId id, std::size_t most = static_cast<std::size_t>(-1)) const {
    if (id >= parameters().size()) throw bad("there is no parameter " + std::to_string(id));
    if (!engine_ || parameter_memory_[id].residual == ParameterMemory::kNone) return {};
    const Bucket& bucket = known(list_.bucket_of(id));
    if (!bucket.matrices.positions.empty() || !memory_.can_roll_back()) require_not_started("sender_residual", bucket);
    bucket.settle_residuals();
    return memory_.committed(parameter_memory_[id].residual, most);
  }
  std::vector<float> owner_residual(BucketId id) const {
    const Bucket& bucket = known(id);
    if (!engine_ || !bucket.has_owner_residual) return {};
    if (!memory_.can_roll_back()) require_not_started("owner_residual", bucket);
    return memory_.committed(bucket.owner_region);
  }

  /// What is in force, line by line: options, then every parameter with its codec, then every bucket with its algorithm
  /// and bytes. Equal on all ranks; this is what `seal` compares.
  std::string description() const {
    return detail::describe(options_, transport_->size(), parameters(), list_.buckets());
  }

 private:
  friend class Handle;
  static double seconds_since(TimePoint began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

  static std::shared_ptr<Transport> given(std::shared_ptr<Transport> transport) {
    if (!transport) throw Error(Errc::invalid_argument, "Session: the transport is null");
    return transport;
  }
  std::string where() const { return "rank " + std::to_string(transport_->rank()) + ": "; }
  Error bad(const std::string& what) const { return Error(Errc::invalid_argument, where() + what); }
  void require_open_for(const char* call) const {
    if (failure_) std::rethrow_exception(failure_);
    if (engine_) throw bad(std::string(call) + ": the Session is sealed");
  }
  void require_sealed(const char* call) const {
    if (failure_) std::rethrow_exception(failure_);
    if (!engine_) throw bad(std::string(call) + ": call seal() first");
    engine_->require_open();
  }
  void require_idle(const char* call) const {
    require_sealed(call);
    for (const Bucket& bucket : list_.buckets())
      if (bucket.started)
        throw bad(std::string(call) + ": " + bucket.operation.name + " was started and not waited for");
  }
  void require_not_started(const char* call, const Bucket& bucket) const {
    if (bucket.started) throw bad(std::string(call) + ": " + bucket.operation.name + " is under way");
  }
  void require_pointer(const char* call, ParameterId id, const void* data) const {
    if (data == nullptr && parameters()[id].count != 0)
      throw bad(std::string(call) + ": the pointer for \"" + parameters()[id].name + "\" is null");
  }
  const Bucket& known(BucketId id) const {
    if (id >= list_.buckets().size()) throw bad("there is no bucket " + std::to_string(id));
    return list_.buckets()[id];
  }
  detail::SessionMemory memory_view() const {
    return {options_, parameters(),       parameter_memory_, list_.buckets(),
            memory_,  transport_->rank(), transport_->size()};
  }
  void restore(std::span<const std::span<const std::byte>> states, bool own_only) {
    require_idle("restore");
    if (step_.calls != 0) throw bad("restore: commit the step or roll it back first");
    const detail::Restored restored = detail::restore(*transport_, channel_, memory_view(), states, own_only, memory_);
    steps_ = restored.counters.steps;
    committed_ = restored.counters.committed;
    rollbacks_ = static_cast<std::uint8_t>(restored.counters.rollbacks);
    if (restored.counters.run != 0) run_ = restored.counters.run;
    scaled_ = 0;
    for (BucketId id = 0; id < list_.buckets().size(); ++id) restored.reductions[id].apply(list_.buckets()[id]);
    step_began_ = Clock::now();
  }

  /// All that needs memory, once the ranks agree.
  void prepare() {
    memory_.allocate(options_.rollback);
    const Channels channels(first_channel_, static_cast<std::uint32_t>(list_.buckets().size()));
    engine_ = std::make_unique<Engine>(transport_, options_.timeout, list_.buckets().size());
    for (BucketId id = 0; id < list_.buckets().size(); ++id) {
      Bucket& bucket = list_.buckets()[id];
      make_reductions(bucket, *transport_, fingerprint_, static_cast<std::uint32_t>(id), channels, options_);
      bucket.operation.name = "bucket " + std::to_string(id) + " (" + parameters()[bucket.parameters.front()].name +
                              (bucket.parameters.size() > 1 ? ", ...)" : ")");
    }
    step_began_ = Clock::now();
  }

  /// Starts a bucket, in the background or by the thread that will wait for it.
  Handle launch(BucketId id, std::span<void* const> data, bool background) {
    require_sealed("start");
    if (background) require_any_thread(*transport_, "start");
    if (id >= list_.buckets().size()) throw bad("start: there is no bucket " + std::to_string(id));
    Bucket& bucket = list_.buckets()[id];
    require_not_started("start", bucket);
    if (options_.momentum.clip_norm != 0.0f)
      throw Error(Errc::unsupported, where() + "start: clip_norm is of the whole gradient; use all_reduce");
    if (data.size() != bucket.parameters.size())
      throw bad("start: got " + std::to_string(data.size()) + " pointers for the " +
                std::to_string(bucket.parameters.size()) + " parameters of " + bucket.operation.name);
    for (std::size_t i = 0; i < data.size(); ++i) require_pointer("start", bucket.parameters[i], data[i]);
    std::copy(data.begin(), data.end(), bucket.pointers.begin());
    if (options_.observer) options_.observer->started(*this, bucket);
    begin(bucket, background);
    return {*this, id, bucket.sequence};
  }

  void begin(Bucket& bucket, bool background) {
    try {
      open_bucket(bucket, parameter_memory_, memory_, rank());
      begin_reductions(bucket, memory_,
                       {.data = {},
                        .senders = {},
                        .owner = {},
                        .step = steps_,
                        .rollbacks = rollbacks_,
                        .sequence = 0,
                        .seed = options_.seed,
                        .committed = committed_,
                        .scaled = scaled_});
      engine_->start(bucket.operation, background);
    } catch (const std::exception& error) {
      engine_->close(std::current_exception(), error.what());  // the other ranks know nothing of it and would wait
      throw;
    }
    bucket.started = true;
    ++bucket.sequence;
    ++bucket.use;
  }
  void finish(Bucket& bucket) {
    engine_->wait(bucket.operation);
    if (!bucket.started) return;
    bucket.started = false;
    bucket.last = bucket.operation.statistics;
    step_.add(bucket.last, bucket.operation.busy_seconds);
    detail::FirstError observers;
    if (options_.observer) observers.catching([&] { options_.observer->finished(*this, bucket); });
    if (options_.momentum) gather_momentum(bucket);
    observers.rethrow();
  }

  /// Momentum of the parameters that are not sparse, of the mean that all ranks hold.
  void gather_momentum(const Bucket& bucket) {
    const detail::FloatEnvironment environment;
    for (const BucketPart* part : {&bucket.blocks, &bucket.matrices})
      for (const std::size_t position : part->positions) {
        const Parameter& parameter = parameters()[bucket.parameters[position]];
        host::apply_momentum(options_.momentum, parameter.type, bucket.pointers[position], parameter.count,
                             memory_.open(parameter_memory_[bucket.parameters[position]].momentum));
      }
  }
  void require_finite(const Bucket& bucket) const {
    if (options_.nonfinite == NonFinitePolicy::error && bucket.last.nonfinite != 0)
      throw Error(Errc::nonfinite, where() + bucket.operation.name + " held " + std::to_string(bucket.last.nonfinite) +
                                       " non-finite elements, counted over all ranks; roll the step back");
  }

  void end_step(bool keep) {
    keep ? memory_.commit() : memory_.rollback();
    for (Bucket& bucket : list_.buckets()) {
      bucket.end_step(keep);
      for (const auto& reduction : bucket.operation.reductions) reduction->end_step(keep);
    }
    ++steps_;
    keep ? static_cast<void>(++committed_) : static_cast<void>(++rollbacks_);
    const TimePoint now = Clock::now();
    step_.step_seconds = std::chrono::duration<double>(now - step_began_).count();
    step_began_ = now;
    total_ += step_;
    last_step_ = std::exchange(step_, {});
    if (options_.observer) options_.observer->step_ended(*this, keep);
  }

  std::shared_ptr<Transport> transport_;
  SessionOptions options_;
  std::uint32_t channel_ = 0;        // of greetings
  std::uint32_t first_channel_ = 0;  // of reductions
  ParameterList list_;
  std::vector<ParameterMemory> parameter_memory_;
  ErrorMemory memory_{options_.residual};
  std::uint64_t fingerprint_ = 0;
  std::uint64_t steps_ = 0;
  std::uint8_t rollbacks_ = 0;  // modulo 256
  std::uint64_t committed_ = 0;
  std::uint64_t run_ = 0;
  std::uint64_t scaled_ = 0;  // names the factors of scale_residuals; 0: none
  TimePoint step_began_;
  StepStatistics step_, last_step_, total_;
  std::vector<void*> flat_;
  std::exception_ptr failure_;      // of seal; later ones are the engine's
  std::unique_ptr<Engine> engine_;  // last: stops before what it works on goes away
};

inline void Handle::wait() {
  const TimePoint began = Clock::now();
  Bucket& bucket = session_->list_.buckets()[bucket_];
  if (bucket.sequence != sequence_) return;  // a later reduction of the bucket is under way, so this one was waited for
  session_->finish(bucket);
  session_->step_.blocked_seconds += Session::seconds_since(began);
  session_->require_finite(bucket);
}

}  // namespace tightwire
