#include "compressed_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <tightwire/core_session.hpp>
#include <tightwire/session.hpp>

namespace tightwire::mpi {
namespace {

/// Without feedback a Session holds nothing but buffers; one that is needed again is made again.
constexpr std::size_t kMostSlots = 32;

}  // namespace

/// What sums of one length go through; with feedback, those at one place of a step.
struct CompressedCommunicator::Slot {
  Slot(std::size_t elements, std::shared_ptr<Transport> transport, SessionOptions options)
      : count(elements), session(std::move(transport), std::move(options)) {}
  std::size_t count;
  Session session;
};

CompressedCommunicator::CompressedCommunicator(MPI_Comm theirs, const Settings& settings) : settings_(settings) {
  PMPI_Comm_rank(theirs, &rank_);
  try {
    duplicate_ = begin_duplicate(theirs);
  } catch (const Error& error) {
    failure_.emplace(error.code(), "rank " + std::to_string(rank_) + ": " + error.what());
  }
}

CompressedCommunicator::~CompressedCommunicator() = default;

std::unique_ptr<CompressedCommunicator::Slot> CompressedCommunicator::make_slot(std::size_t count) {
  auto slot = std::make_unique<Slot>(count, transport_, settings_.session(transport_->size()));
  slot->session.add("MPI_Allreduce", {static_cast<std::int64_t>(count)});
  slot->session.seal();
  return slot;
}

CompressedCommunicator::Slot& CompressedCommunicator::slot_for(std::size_t count) {
  if (settings_.calls_per_step != 0) {
    const std::size_t place = static_cast<std::size_t>(calls_) % settings_.calls_per_step;
    if (place == slots_.size()) slots_.push_back(make_slot(count));
    Slot& slot = **std::next(slots_.begin(), static_cast<std::ptrdiff_t>(place));
    if (slot.count != count)
      throw Error(Errc::mismatch, "rank " + std::to_string(rank_) + ": TIGHTWIRE_MPI: call " + std::to_string(place) +
                                      " of " + std::to_string(settings_.calls_per_step) + " of a step sums " +
                                      std::to_string(count) + " elements; in the first step it summed " +
                                      std::to_string(slot.count) + ": calls-per-step does not fit this program");
    return slot;
  }
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const auto& slot) { return slot->count == count; });
  if (found != slots_.end()) {
    slots_.splice(slots_.begin(), slots_, found);
  } else {
    slots_.push_front(make_slot(count));
    if (slots_.size() > kMostSlots) slots_.pop_back();
  }
  return *slots_.front();
}

void CompressedCommunicator::reduce(const Call& call) {
  if (failure_) throw Error(*failure_);
  try {
    if (!transport_)
      transport_ = take_over(std::move(duplicate_), {.timeout = settings_.timeout}, "called MPI_Allreduce");
    Slot& slot = slot_for(call.count);
    if (call.contribution != nullptr && call.contribution != call.sum)
      std::memcpy(call.sum, call.contribution, call.count * sizeof(float));
    void* const data = call.sum;
    slot.session.all_reduce(std::span<void* const>(&data, 1));
    slot.session.commit();
    total_ += slot.session.last_step();
    ++calls_;
  } catch (const Error& error) {
    failure_ = error;
  } catch (const std::exception& error) {
    failure_.emplace(Errc::internal, "rank " + std::to_string(rank_) + ": " + error.what());
  }
  if (!failure_) return;
  // A mismatch all ranks see alike; to give up would spoil what others are still at.
  if (transport_ && failure_->code() != Errc::mismatch) transport_->abort(failure_->what());
  throw Error(*failure_);
}

void CompressedCommunicator::all_reduce(const Call& call) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });  // what was started ends within its own time limit
  busy_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    reduce(call);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  lock.unlock();
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

void CompressedCommunicator::start(const Call& call, std::function<void(const Error*)> ended) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  queue_.push_back({call, std::move(ended)});
  changed_.notify_all();
}

void CompressedCommunicator::work() {
  worker_ = std::this_thread::get_id();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (!queue_.empty() && !busy_); });
    if (queue_.empty()) break;
    Started started = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::optional<Error> failure;
    try {
      reduce(started.call);
    } catch (const Error& error) {
      failure = error;
    }
    started.ended(failure ? &*failure : nullptr);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
  const bool by_itself = closed_by_itself_;
  lock.unlock();
  if (by_itself) clear_up();
}

void CompressedCommunicator::clear_up() noexcept {
  slots_.clear();
  transport_.reset();
  static_cast<void>(duplicate_.release());  // begun and not ended, so that MPI may write to it yet
}

void CompressedCommunicator::close() noexcept {
  // MPICH forgets a communicator that was freed with sums under way when the last one ends, on the thread that ends it.
  const bool by_itself = worker_.load() == std::this_thread::get_id();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    closed_by_itself_ = closed_by_itself_ || by_itself;
    if (by_itself || std::exchange(closed_, true)) return;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  clear_up();
}

}  // namespace tightwire::mpi
