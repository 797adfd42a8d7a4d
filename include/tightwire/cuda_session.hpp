#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tightwire/cuda.hpp>
#include <tightwire/cuda_transport.hpp>
#include <tightwire/parameter_list.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/session_options.hpp>
#include <tightwire/statistics.hpp>

namespace tightwire::cuda {

class Session;

/// A reduction that was started.
class Handle {
 public:
  /// Work that is put on the stream from now on comes after the reduction. Does not block the host, but see Session for
  /// top-k and PowerSgd. May be called for several streams, until the bucket is started again. Throws
  /// Error(invalid_argument) after that, and for a bucket that waits for one of a lower number, which was not started;
  /// Error(unsupported) while the stream is captured into a CUDA graph; and what closed the Session.
  void wait(Stream stream);

 private:
  friend class Session;
  Handle(Session& session, BucketId bucket, std::uint32_t sequence)
      : session_(&session), bucket_(bucket), sequence_(sequence) {}
  Session* session_;
  BucketId bucket_;
  std::uint32_t sequence_;
};

/// What makes coders on the device; `make_coder` makes the built-in ones. For a codec of one's own see cuda/coder.cuh.
using MakeCoder = std::function<std::shared_ptr<const Coder>(const Codec& codec, ElementType type)>;

/// tightwire::Session for gradients on a device: the same options, parameters, plans, codecs and sums, bit for bit.
///
///     cuda::Session session(nccl::open(rendezvous::environment()), {.codec = Int8{}});
///     for (...) session.add(name, shape, type);
///     session.seal();
///     for (each step) { session.all_reduce(gradients, stream); session.commit(); }
///
/// Work goes on streams of the Session: a bucket is encoded once the producer's stream has come to `start`, and
/// exchanged in two rounds (`one_shot`: one) in the order of the numbers of buckets, whatever the order of their
/// starts. Calls return before it is done: they wait for nothing, allocate nothing and copy nothing to the host, except
/// `seal`, `synchronize`, `save`, `restore`, `sender_residual`, `owner_residual`, and `commit` and `rollback` under a
/// policy of non-finite elements (skip_step, error), which has to know how many this step met.
///
/// Top-k is an exception. Kernels add the residual and choose, and write what comes out; but what was chosen, and no
/// other element, is brought to the host, which writes frames of it and sums those of all ranks, since only then their
/// sizes are known. So `wait` (and `all_reduce`, `run`) for a bucket that holds such a parameter, or comes after one,
/// blocks until the last round of it has ended, no longer than the timeout without progress: of its own once it has its
/// turn, of a producer's stream before. `start` waits for no rank, but takes on what can go on, which may be the host's
/// part of an earlier bucket; and it waits while another thread is in such a `wait`. That part waits for the device
/// where so nearly all of a piece was chosen that it is sent whole, though not all of it was asked for: for a copy of
/// it.
/// PowerSgd is another: matrices stay on the device, and factors are orthonormalized and summed by the host.
///
/// `all_reduce`, `start` and `wait` refuse a stream that is captured. Other streams may be, by any thread.
///
/// Every step starts buckets alike on every rank: all of them in turn, from the first on. One thread at a time may call
/// it, except that one may wait for handles while another one starts further buckets. Errors of the device and of peers
/// are found late: by the first call after they happened, by `synchronize` at the latest. They close the Session.
///
/// Not on devices: momentum correction of RandomK and with clip_norm, hierarchies, and capture into a CUDA graph (steps
/// differ in more than their data). Asking for them throws Error(unsupported).
class Session {
 public:
  /// Works on the transport's device. Throws Error(invalid_argument) without a transport or for options that make no
  /// sense, Error(unsupported) for those above and for more than Coder::kMostSources ranks.
  explicit Session(std::shared_ptr<Transport> transport, SessionOptions options = {}, MakeCoder make = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Waits for what is under way, no longer than the timeout; then gives it up, and waits as long for its end. Where a
  /// stream of the caller's holds it up even then, its memory is left to the device.
  ~Session();

  /// As in tightwire::Session.
  ParameterId add(std::string name, std::vector<std::int64_t> shape, ElementType type = ElementType::f32);
  /// As in tightwire::Session: a buffer for reduce_scatter, all_gather or broadcast, with a bucket of its own, whose
  /// turn comes in the order of numbers as that of any other.
  ParameterId add(std::string name, std::vector<std::int64_t> shape, ElementType type, Operation operation,
                  int root = 0);
  /// As in tightwire::Session. Buckets are exchanged in the order of their numbers: those that are ready first come
  /// first.
  BucketId add_bucket(std::span<const ParameterId> parameters);
  /// Opens a channel of the transport, plans, agrees with the other ranks and takes all memory. Collective. Throws
  /// Error(mismatch) on every rank that names two ranks and the first thing they differ in.
  void seal();

  /// Starts the reduction of a bucket, in place, when `producer` has come to here: one pointer to memory of the device
  /// per parameter of the bucket, in its order. Until a stream has waited for it the buffers are the Session's. Throws
  /// Error(invalid_argument) for a null pointer, one to memory of the host, a wrong number of pointers, a bucket that
  /// is under way, Error(unsupported) while `producer` is captured.
  Handle start(BucketId id, std::span<void* const> data, Stream producer);
  /// Starts the bucket of a parameter that has one of its own, and lets the stream wait for it.
  void run(ParameterId id, void* data, Stream stream);
  /// Starts all buckets, and lets the stream wait for them: one pointer per parameter, in order of addition.
  void all_reduce(std::span<void* const> data, Stream stream);

  /// Ends the step and keeps its residuals. Under skip_step it waits for the device, and returns false where the step
  /// was skipped; under error it does so too, and throws Error(nonfinite).
  bool commit();
  /// Ends the step as if it had not happened. Every rank must do the same. Waits for the device unless non-finite
  /// elements are propagated, no longer than the timeout; what this step met of them is not counted to the next.
  void rollback();
  /// Waits until all that was started has ended on the device, and for top-k and PowerSgd takes on the host's part of
  /// it, as `wait` does. Throws what went wrong, Error(timeout) if it takes longer than the timeout,
  /// Error(invalid_argument) for a bucket that waits for one of a lower number, which was not started.
  void synchronize();

  /// As in tightwire::Session, and in the same format: what one kind of Session saved the other restores. Brings
  /// residuals to the host, or back; waits for the device.
  std::vector<std::byte> save();
  void restore(std::span<const std::byte> own);
  void restore(std::span<const std::span<const std::byte>> ranks);

  int rank() const noexcept;
  int size() const noexcept;
  const std::vector<Parameter>& parameters() const noexcept;
  std::size_t buckets() const noexcept;
  BucketId bucket_of(ParameterId id) const;
  const std::vector<ParameterId>& bucket_parameters(BucketId id) const;
  const BucketPlan& bucket_plan(BucketId id) const;
  std::uint64_t steps() const noexcept;

  /// Of all reductions that were started; bytes of top-k and PowerSgd once they were sent. Bytes and calls; non-finite
  /// elements of those that `synchronize` or `commit` waited for. No times: work goes on behind the host's back.
  const Statistics& total() const noexcept;
  /// Memory for residuals, and for frames, in bytes of the device.
  std::size_t residual_bytes() const noexcept;
  std::size_t frame_bytes() const noexcept;
  /// Copies of the residuals of the last commit, as in tightwire::Session; they wait for the device. With rollback =
  /// false there is one copy, which is that of the step so far. Throws Error(invalid_argument) while the bucket is
  /// under way, for such a copy and for a parameter beside or in matrices of PowerSgd.
  std::vector<float> sender_residual(ParameterId id);
  std::vector<float> owner_residual(BucketId id);

  /// What is in force, as in tightwire::Session.
  std::string description() const;
  /// The transport's: whether bytes go from device to device, or are staged through pinned memory of the host. Says so
  /// where chosen elements (top-k) or factors (PowerSgd) go through the host.
  std::string transport() const;
  /// Bytes that rounds so far have put through memory of the host, those of `seal` among them, and those of what was
  /// chosen (top-k) and of what came out of it, and those of factors (PowerSgd); 0 where there are none.
  std::uint64_t staged_bytes() const noexcept;

 private:
  friend class Handle;
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tightwire::cuda
