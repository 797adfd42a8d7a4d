#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/round_pool.hpp>
#include <tightwire/transport.hpp>

namespace tightwire::local {

/// What the ranks of one process share: for each rank, the messages that have not met their other half.
class Exchange {
 public:
  /// Halves and rounds in flight for which there is room from the start, so that how ranks happen to meet does not
  /// decide whether a step allocates.
  static constexpr std::size_t kInFlight = 1024;

  explicit Exchange(int ranks) : inboxes_(static_cast<std::size_t>(ranks)) {
    for (Inbox& each : inboxes_) {
      each.sends.reserve(kInFlight);
      each.receives.reserve(kInFlight);
    }
  }

  struct Pending {
    int from;
    int to;
    std::uint64_t tag;
    std::byte* data;
    std::size_t bytes;
    std::size_t* left;  ///< messages the round of this side still waits for
  };
  struct Inbox {
    std::vector<Pending> sends;
    std::vector<Pending> receives;
  };
  struct Loss {
    int rank;
    std::string reason;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t events = 0;
  std::optional<Loss> loss;

  Inbox& inbox(int rank) { return inboxes_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Inbox> inboxes_;
};

/// Ranks as threads of one process; header-only. A send is copied straight into the receive it meets.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Exchange> exchange, int rank, int size)
      : exchange_(std::move(exchange)), rank_(rank), size_(size), rounds_(Exchange::kInFlight) {}
  ~LocalTransport() override {
    withdraw("it closed its transport with messages unfinished", [](const Exchange::Pending&) { return true; });
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override { return "in-process"; }
  bool shares_memory() const noexcept override { return true; }

  void detach(std::span<std::byte> memory) noexcept override {
    withdraw("it took away memory that unfinished messages use", [&](const Exchange::Pending& pending) {
      return overlap(memory, {pending.data, pending.bytes});
    });
  }

  Ticket post(std::span<const Message> round) override {
    require_valid(round, rank_, size_);
    const std::lock_guard lock(exchange_->mutex);
    require_open();
    require_all_present();
    Round& mine = rounds_.open();
    mine.left = round.size();
    for (const Message& message : round) {
      const bool sending = message.kind == Message::Kind::send;
      const Exchange::Pending side{sending ? rank_ : message.peer,
                                   sending ? message.peer : rank_,
                                   message.tag,
                                   message.data,
                                   message.bytes,
                                   &mine.left};
      Exchange::Inbox& inbox = exchange_->inbox(side.to);
      meet(side, sending ? inbox.receives : inbox.sends, sending ? inbox.sends : inbox.receives, sending);
    }
    ++exchange_->events;
    exchange_->changed.notify_all();
    return RoundPool<Round>::ticket(mine);
  }

  bool done(Ticket ticket) override {
    if (ticket == 0) return true;
    const std::lock_guard lock(exchange_->mutex);
    require_open();
    Round* const round = rounds_.find(ticket);
    if (round == nullptr)
      throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": this ticket was spent or never posted");
    if (round->left != 0) {
      require_all_present();  // what arrived before a rank was lost still counts
      return false;
    }
    rounds_.close(*round);
    return true;
  }

  void idle(TimePoint until) override {
    std::unique_lock lock(exchange_->mutex);
    std::uint64_t& seen = seen_by_caller();
    exchange_->changed.wait_until(lock, until, [&] { return exchange_->events != seen || exchange_->loss; });
    seen = exchange_->events;
  }

  void wake() noexcept override {
    const std::lock_guard lock(exchange_->mutex);
    ++exchange_->events;
    exchange_->changed.notify_all();
  }

  std::string waiting_for(Ticket ticket) const override {
    const std::lock_guard lock(exchange_->mutex);
    const Round* const round = rounds_.find(ticket);
    if (round == nullptr) return "";
    std::vector<int> peers;
    for (int rank = 0; rank < size_; ++rank)
      for (const auto* list : {&exchange_->inbox(rank).sends, &exchange_->inbox(rank).receives})
        for (const Exchange::Pending& side : *list)
          if (side.left == &round->left) peers.push_back(side.from == rank_ ? side.to : side.from);
    return rank_list(std::move(peers));
  }

  void abort(std::string_view reason) noexcept override {
    const std::lock_guard lock(exchange_->mutex);
    close(reason);
  }

 private:
  struct Round {
    std::uint32_t slot = 0;
    std::uint32_t generation = 0;
    bool in_use = false;
    Round* next_free = nullptr;
    std::size_t left = 0;  ///< messages that did not meet their other half
  };

  void require_open() const {
    if (failure_) throw Error(*failure_);
  }
  /// Once a rank is lost no two halves meet any more, so that memory of unfinished rounds may go away.
  void require_all_present() {
    if (!exchange_->loss) return;
    const auto& [rank, reason] = *exchange_->loss;
    failure_.emplace(Errc::peer_lost,
                     "rank " + std::to_string(rank) + (rank == rank_ ? " (this rank) gave up: " : " lost: ") + reason);
    throw Error(*failure_);
  }

  /// Under the lock.
  void close(std::string_view reason) {
    if (!exchange_->loss) exchange_->loss = Exchange::Loss{rank_, std::string(reason)};
    ++exchange_->events;
    exchange_->changed.notify_all();
  }

  /// The events that the calling thread knows of. Threads wait side by side; none may take the news from another.
  std::uint64_t& seen_by_caller() {
    const std::thread::id caller = std::this_thread::get_id();
    for (auto& [thread, events] : seen_)
      if (thread == caller) return events;
    return seen_.emplace_back(caller, 0).second;
  }

  /// Completes `side` with the oldest one that fits, or leaves it for later.
  void meet(const Exchange::Pending& side, std::vector<Exchange::Pending>& others, std::vector<Exchange::Pending>& own,
            bool sending) {
    const auto fits = [&](const Exchange::Pending& o) { return o.from == side.from && o.tag == side.tag; };
    const auto other = std::find_if(others.begin(), others.end(), fits);
    if (other == others.end()) {
      own.push_back(side);
      return;
    }
    const Exchange::Pending& send = sending ? side : *other;
    const Exchange::Pending& receive = sending ? *other : side;
    if (send.bytes != receive.bytes) {
      // Both sides learn of it: the receiver must not use the bytes, the sender would wait for ever.
      const std::string what = "frame from rank " + std::to_string(send.from) + " to rank " + std::to_string(send.to) +
                               ": expected " + std::to_string(receive.bytes) + " bytes, got " +
                               std::to_string(send.bytes);
      failure_.emplace(Errc::corrupt, what);
      close(what);
      throw Error(*failure_);
    }
    if (send.bytes != 0) std::memcpy(receive.data, send.data, send.bytes);
    --*send.left;
    --*receive.left;
    others.erase(other);
  }

  /// Our halves that `concerned` names must not be met any more: their memory goes away.
  template <class Concerned>
  void withdraw(std::string_view reason, Concerned concerned) noexcept {
    const std::lock_guard lock(exchange_->mutex);
    std::size_t given_up = 0;
    for (int rank = 0; rank < size_; ++rank) {
      Exchange::Inbox& inbox = exchange_->inbox(rank);
      given_up += std::erase_if(inbox.sends, [&](const auto& side) { return side.from == rank_ && concerned(side); });
      given_up += std::erase_if(inbox.receives, [&](const auto& side) { return side.to == rank_ && concerned(side); });
    }
    if (given_up != 0) close(reason);
  }

  std::shared_ptr<Exchange> exchange_;
  int rank_;
  int size_;
  RoundPool<Round> rounds_;
  std::deque<std::pair<std::thread::id, std::uint64_t>> seen_;  // a deque: its elements stay where they are
  std::optional<Error> failure_;  // the first this transport threw, and from then on throws
};

/// The transports of `ranks` ranks of this process, to be used from one thread each.
inline std::vector<std::shared_ptr<Transport>> make(int ranks) {
  auto exchange = std::make_shared<Exchange>(ranks);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_shared<LocalTransport>(exchange, rank, ranks));
  return transports;
}

/// Runs `body` once per rank, each on a thread of its own, and returns when all have ended. When one throws, the others
/// get Error(peer_lost) from their next wait, and the first exception is rethrown here.
inline void run(int ranks, const std::function<void(std::shared_ptr<Transport>)>& body) {
  auto transports = make(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(transports.size());
  for (auto& transport : transports)
    threads.emplace_back([&, transport] {
      try {
        body(transport);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        transport->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tightwire::local
