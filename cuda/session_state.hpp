#pragma once
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/bucket_opening.hpp>
#include <tightwire/bucket_planning.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/cuda_session.hpp>
#include <tightwire/error_memory.hpp>
#include <tightwire/session_description.hpp>
#include <tightwire/session_state.hpp>

#include "bucket_exchange.hpp"
#include "host_messages.hpp"
#include "low_rank_exchange.hpp"
#include "random_exchange.hpp"
#include "resources.hpp"
#include "sparse_exchange.hpp"

namespace tightwire::cuda {

/// What a Session is made of. Calls come with the mutex held and the device made current.
class Session::State {
 public:
  State(std::shared_ptr<Transport> transport, SessionOptions options, MakeCoder make);
  ~State();

  ParameterId add(Parameter parameter);
  BucketId add_bucket(std::span<const ParameterId> parameters);
  void seal();
  std::uint32_t start(BucketId id, std::span<void* const> data, Stream producer);
  void wait(BucketId id, std::uint32_t sequence, Stream stream);
  void all_reduce(std::span<void* const> data, Stream stream);
  void run(ParameterId id, void* data, Stream stream);
  bool commit();
  void rollback();
  void synchronize();
  std::vector<float> sender_residual(ParameterId id);
  std::vector<float> owner_residual(BucketId id);
  std::string description() const;
  std::string transport() const;
  std::uint64_t staged_bytes() const noexcept;
  std::vector<std::byte> save();
  void restore(std::span<const std::span<const std::byte>> states, bool own_only);

  std::string where() const { return "rank " + std::to_string(transport_->rank()) + ": "; }
  Error bad(const std::string& what) const { return Error(Errc::invalid_argument, where() + what); }
  void require_sealed(const char* call);
  const Bucket& known(BucketId id) const;

  std::mutex mutex_;
  std::shared_ptr<Transport> transport_;
  SessionOptions options_;
  ParameterList list_;
  ErrorMemory memory_;
  std::size_t frame_bytes_ = 0;
  std::uint64_t steps_ = 0;
  Statistics total_;
  std::shared_ptr<Transport> channel_;

 private:
  /// How far a reduction of a bucket is put on streams.
  enum class Stage { idle, encoded, exchanged };
  struct OnDevice {
    std::optional<detail::BucketExchange> exchange;
    /// What in part goes through the host, the bucket's: the largest elements, then matrices; exchanged second.
    struct Hosted {
      detail::HostedExchange* exchange;
      BucketPart* part;
      std::uint64_t nonfinite = 0;  ///< in its statistics so far
    };
    std::vector<Hosted> hosted;
    std::optional<detail::RandomExchange> drawn;  ///< of elements that are drawn; exchanged last
    detail::Event ready, encoded, turn, done;
    Stage stage = Stage::idle;
    bool waited = true;                ///< some stream waits for its end
    bool used = false;                 ///< `done` stands for a reduction
    bool on_its_way = false;           ///< what comes before that is on the stream
    bool has_turn = false;             ///< the device has come to `turn`, behind what others are waited for
    TimePoint progressed;              ///< of what goes through the host, since then
    std::uint64_t nonfinite_seen = 0;  ///< of the reports
    std::string name;
    std::vector<const void*> checked;  ///< pointers that are known to be of the device, by parameter
    std::uint64_t nonfinite() const {
      std::uint64_t met = exchange->report().nonfinite + (drawn ? drawn->report().nonfinite : 0);
      for (const Hosted& each : hosted) met += each.nonfinite + each.exchange->late_nonfinite();
      return met;
    }
    explicit OnDevice(int rank) : ready(rank), encoded(rank), turn(rank), done(rank) {}
  };
  using Clock = tightwire::Clock;

  void require_open_for(const char* call) const;
  void require_idle(const char* call);
  void require_not_under_way(const char* call, const OnDevice& bucket) const;
  void require_turn(const char* call, BucketId id) const;
  void require_between_steps(const char* call);
  tightwire::detail::SessionMemory memory_view() const;
  void require_pointers(const char* call, const Bucket& bucket, OnDevice& on_device, std::span<void* const> data);
  void require_not_captured(const char* call, Stream stream) const;
  void refuse_what_is_for_hosts(const Bucket& bucket) const;
  std::vector<std::shared_ptr<const Coder>> coders(const Bucket& bucket) const;
  std::vector<std::shared_ptr<const Coder>> coders_of_drawn(const Bucket& bucket) const;
  static std::vector<std::shared_ptr<const Coder>> loaded(std::vector<std::shared_ptr<const Coder>> coders);
  void require_same(const Coder& coder, const PlannedParameter& planned) const;
  void make_exchanges(BucketId id, std::uint64_t fingerprint, std::byte*& frames);
  void make_hosted_exchanges(Bucket& bucket, OnDevice& on_device, const FrameIdentity& identity, float divisor);
  void prepare(std::uint64_t fingerprint);
  detail::MomentumOnDevice momentum() const {
    return {options_.momentum.factor, options_.momentum.nesterov, options_.momentum.masking};
  }
  ReductionInput open(Bucket& bucket, BucketPart& part);
  void gather_momentum(const Bucket& bucket);
  void issue(const OnDevice* until = nullptr);
  bool exchange_hosted(OnDevice& bucket, bool waits);
  void require_progress(OnDevice& bucket, const detail::HostedExchange& exchange);
  void settle_residuals();
  void check();
  void check(OnDevice& bucket);
  void check_report(const OnDevice& bucket, const detail::Report& report);
  std::uint64_t take_nonfinite();
  void end_step(bool keep);
  std::vector<float> copy_of(ErrorMemory::Region region);
  void wait_for_streams();
  void settle();
  void end() noexcept;
  void give_up(const char* reason) noexcept;
  /// An error of the device, of the transport or of a peer closes the Session, and so does a lack of memory: the other
  /// ranks know nothing of it and would wait.
  template <class Call>
  auto closing(const Call& call) {
    try {
      return call();
    } catch (const Error& error) {
      if (error.code() == Errc::invalid_argument || error.code() == Errc::unsupported) throw;
      close(std::current_exception(), error.what());
    } catch (const std::bad_alloc&) {
      const Error error(Errc::no_memory, where() + "out of memory of the host");
      close(std::make_exception_ptr(error), error.what());
    } catch (const std::exception& other) {
      const Error error(Errc::internal, where() + other.what());
      close(std::make_exception_ptr(error), error.what());
    }
  }
  [[noreturn]] void close(std::exception_ptr failure, const char* reason) {
    failure_ = failure;
    channel_->abort(reason);
    std::rethrow_exception(failure);
  }

  int device_;
  MakeCoder make_;
  SessionOptions planned_with_;
  std::vector<ParameterMemory> parameter_memory_;
  std::uint64_t step_nonfinite_ = 0;
  std::uint64_t step_calls_ = 0;
  std::uint64_t committed_ = 0;
  std::uint64_t run_ = 0;
  std::uint8_t rollbacks_ = 0;
  std::exception_ptr failure_;
  BucketId next_ = 0;  ///< bucket to be exchanged
  bool sealed_ = false;
  std::unique_ptr<detail::HostMessages> host_;
  std::unique_ptr<detail::OwnStream> encodes_, exchanges_, copies_;  ///< the last: what the host asks for
  std::unique_ptr<detail::HostMessages> frames_of_host_;             ///< on the stream of exchanges
  detail::Memory residuals_, frames_, reports_;
  std::deque<OnDevice> on_device_;
};

}  // namespace tightwire::cuda
