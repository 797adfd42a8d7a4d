#include "mpi_transport.hpp"

#include <sched.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

namespace tightwire::mpi {
namespace {

/// A message between running peers takes microseconds. After these a waiter lets others have the core, then sleeps,
/// since MPI has nothing to sleep on.
constexpr std::chrono::microseconds kLookFor{50};
constexpr std::chrono::microseconds kYieldFor{1000};
constexpr std::chrono::microseconds kSleep{50};
/// One `idle` is no longer than this: another thread may have taken the news.
constexpr std::chrono::milliseconds kLongestIdle{2};

/// Equal for the ranks of a running kernel.
std::uint64_t this_node() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> name{};
  int length = 0;
  if (boot_id.empty() && MPI_Get_processor_name(name.data(), &length) == MPI_SUCCESS) boot_id = name.data();
  return XXH3_64bits(boot_id.data(), boot_id.size());
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm communicator, std::chrono::milliseconds limit, std::size_t piece)
    : communicator_(communicator),
      limit_(limit),
      node_(this_node()),
      in_use_(std::make_unique<InUseByMpi>(communicator, piece)) {
  MPI_Comm_rank(communicator, &rank_);
  MPI_Comm_size(communicator, &size_);
  peers_.resize(static_cast<std::size_t>(size_));
  for (Peer& each : peers_) {
    each.waiting.reserve(64);
    each.early.reserve(64);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  any_thread_ = level == MPI_THREAD_MULTIPLE;
  int* highest = nullptr;
  int known = 0;
  if (MPI_Comm_get_attr(communicator, MPI_TAG_UB, static_cast<void*>(&highest), &known) == MPI_SUCCESS && known != 0)
    highest_tag_ = static_cast<std::uint64_t>(*highest);
}

MpiTransport::~MpiTransport() {
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  if (!any_thread_ && std::this_thread::get_id() != owner_) {  // nothing of MPI may be touched here
    static_cast<void>(in_use_.release());
    return;
  }
  try {
    close_in_order();
  } catch (const std::exception&) {
    // A destructor has nobody to tell.
  }
  give_back();
  if (operations_.has_requests()) static_cast<void>(in_use_.release());
}

void MpiTransport::greet(TimePoint until) {
  {
    const std::lock_guard lock(mutex_);
    try {
      listen();
      tell_all(Control::Kind::hello);
    } catch (const Error& error) {
      fail(error.code(), error.what());
    }
  }
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      progress();
      require_present();
      std::vector<int> silent;
      for (int other = 0; other < size_; ++other)
        if (other != rank_ && !peer(other).greeted) silent.push_back(other);
      if (silent.empty()) break;
      if (Clock::now() >= until)
        fail(Errc::timeout,
             "rank " + std::to_string(rank_) + ": over MPI no answer in time from ranks " + rank_list(silent));
    }
    idle(until);
  }
  const std::lock_guard lock(mutex_);
  checksums_ =
      std::any_of(peers_.begin(), peers_.end(), [&](const Peer& each) { return each.greeted && each.node != node_; });
}

std::string MpiTransport::describe() const {
  return "mpi: " + version() + ", " + std::to_string(size_) + " ranks" +
         (any_thread_ ? "" : ", one thread (MPI was initialized without MPI_THREAD_MULTIPLE)") +
         (checksums_ ? ", checksums" : "");
}

void MpiTransport::detach(std::span<std::byte> memory) noexcept {
  bool in_use = false;
  {
    const std::lock_guard lock(mutex_);
    tell_late();
    in_use = !failure_ && operations_.uses(memory);
  }
  if (in_use) abort("it took away memory that unfinished messages use");
}

void MpiTransport::require_thread(const char* call) const {
  if (any_thread_ || std::this_thread::get_id() == owner_) return;
  throw Error(Errc::unsupported,
              "rank " + std::to_string(rank_) + ": " + call +
                  " from another thread than the one that adopted the communicator: MPI was initialized without "
                  "MPI_THREAD_MULTIPLE");
}

void MpiTransport::require_open() {
  if (!failure_) return;
  tell_late();
  throw Error(*failure_);
}

void MpiTransport::require_present() {
  if (loss_) {
    shut(Errc::peer_lost, "rank " + std::to_string(loss_->rank) + " lost: " + loss_->reason, false);
    throw Error(*failure_);
  }
  for (int other = 0; other < size_; ++other)
    if (peer(other).gone && !peer(other).waiting.empty())
      fail(Errc::peer_lost, "rank " + std::to_string(other) + " lost: it closed its transport");
}

Ticket MpiTransport::post(std::span<const Message> messages) {
  require_valid(messages, rank_, size_);
  require_thread("post");
  const std::lock_guard lock(mutex_);
  require_open();
  if (loss_) require_present();
  if (messages.empty()) return 0;
  Round& round = operations_.open();
  const Ticket ticket = Operations::ticket(round);
  try {
    // Receives first: what arrives meanwhile then finds its place and is not stored in between.
    for (const Message& message : messages)
      if (message.kind == Message::Kind::receive) start_receive(operations_.add(&round, message));
    for (const Message& message : messages)
      if (message.kind == Message::Kind::send) start_send(operations_.add(&round, message));
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
  return ticket;
}

void MpiTransport::start_send(Operation& operation) {
  const Message& message = operation.message;
  const std::uint64_t number = peer(message.peer).sent++;
  operation.control = {.tag = message.tag, .bytes = message.bytes, .number = number};
  operations_.send(operation, reinterpret_cast<const std::byte*>(&operation.control), sizeof(Control), kControlTag);
  operations_.send(operation, message.data, message.bytes, wire_tag(number));
}

void MpiTransport::start_receive(Operation& operation) {
  Peer& from = peer(operation.message.peer);
  const auto early = std::find_if(from.early.begin(), from.early.end(),
                                  [&](const Announcement& each) { return each.tag == operation.message.tag; });
  if (early == from.early.end()) {
    from.waiting.push_back(&operation);
    return;
  }
  const Announcement announced = *early;
  from.early.erase(early);
  join(operation, announced);
}

void MpiTransport::join(Operation& operation, const Announcement& announced) {
  const Message& message = operation.message;
  if (announced.bytes != message.bytes)
    throw Error(Errc::corrupt, "frame from rank " + std::to_string(message.peer) + " with tag " +
                                   std::to_string(message.tag) + ": expected " + std::to_string(message.bytes) +
                                   " bytes, got " + std::to_string(announced.bytes));
  if (message.bytes == 0)
    operations_.settle(operation);
  else
    operations_.receive(operation, message.data, message.bytes, wire_tag(announced.number));
}

void MpiTransport::listen() {
  ControlWithReason& heard = in_use_->heard;
  require(MPI_Irecv(&heard, sizeof heard, MPI_BYTE, MPI_ANY_SOURCE, kControlTag, communicator_, &listening_),
          "MPI_Irecv");
}

void MpiTransport::progress() {
  const std::uint64_t before = operations_.settled_count();
  const ControlWithReason& heard = in_use_->heard;
  try {
    operations_.progress();
    for (;;) {
      int arrived = 0;
      MPI_Status status;
      require(MPI_Test(&listening_, &arrived, &status), "MPI_Test");
      if (arrived == 0) break;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      const auto reason = read_word(rank_, status.MPI_SOURCE, heard, static_cast<std::size_t>(std::max(bytes, 0)));
      hear(status.MPI_SOURCE, heard.control, reason);
      events_.fetch_add(1, std::memory_order_relaxed);
      listen();
    }
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
  if (operations_.settled_count() != before) events_.fetch_add(1, std::memory_order_relaxed);
}

void MpiTransport::hear(int from, const Control& control, std::string_view reason) {
  switch (control.kind) {
    case Control::Kind::message: return hear_message(from, control);
    case Control::Kind::abort:
      if (!loss_) loss_ = Loss{from, std::string(reason)};
      return;
    case Control::Kind::goodbye: peer(from).gone = true; return;
    case Control::Kind::hello:
      peer(from).greeted = true;
      peer(from).node = control.bytes;
      return;
  }
}

void MpiTransport::hear_message(int from, const Control& control) {
  Peer& its = peer(from);
  const auto fits = [&](const Operation* operation) { return operation->message.tag == control.tag; };
  const auto found = std::find_if(its.waiting.begin(), its.waiting.end(), fits);
  const Announcement announced{control.tag, control.bytes, control.number};
  if (found == its.waiting.end()) {
    its.early.push_back(announced);
    return;
  }
  Operation& operation = **found;
  its.waiting.erase(found);
  join(operation, announced);
}

bool MpiTransport::done(Ticket ticket) {
  require_thread("done");
  const std::lock_guard lock(mutex_);
  require_open();
  if (ticket == 0) return true;
  Round* const round = operations_.find(ticket);
  if (round == nullptr)
    throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": this ticket was spent or never given out");
  if (round->incomplete != 0) progress();
  if (round->incomplete != 0) {
    // What arrived before its sender was lost still counts, hence the question comes after the progress.
    require_present();
    return false;
  }
  operations_.close(*round);
  return true;
}

void MpiTransport::idle(TimePoint until) {
  require_thread("idle");
  const std::uint64_t seen = events_.load(std::memory_order_relaxed);
  const TimePoint began = Clock::now();
  const TimePoint end = std::min(until, began + kLongestIdle);
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      require_open();
      progress();
    }
    const TimePoint now = Clock::now();
    if (now >= end || events_.load(std::memory_order_relaxed) != seen) return;
    if (now >= began + kYieldFor)
      std::this_thread::sleep_for(kSleep);
    else if (now >= began + kLookFor)
      sched_yield();
  }
}

std::string MpiTransport::waiting_for(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  const Round* const round = operations_.find(ticket);
  if (round == nullptr) return {};
  std::vector<int> ranks;
  for (const Operation* each = round->first; each != nullptr; each = each->next)
    if (!each->settled) ranks.push_back(each->message.peer);
  return rank_list(std::move(ranks));
}

std::uint64_t MpiTransport::checksum(std::span<const std::byte> payload) const noexcept {
  if (!checksums_) return 0;
  return std::max<std::uint64_t>(XXH3_64bits(payload.data(), payload.size()), 1);  // 0 says that there is none
}

}  // namespace tightwire::mpi
