#include "shm_transport.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>

namespace tightwire::shm {
namespace {

/// A waiter that has a processor to itself looks for about two microseconds before it gives it to others.
constexpr int kLooks = 60;

std::string description_of(const std::vector<Peer>& peers, const std::vector<int>& ranks) {
  if (ranks.size() == 1) return "shm: alone";
  const std::optional<int> processors = processors_of(peers, ranks);
  std::string text = "shm: " + std::to_string(ranks.size()) + " ranks";
  if (processors && *processors < static_cast<int>(ranks.size()))
    text += " on " + std::to_string(*processors) + " processors";
  return text;
}

/// As much as the machine has, so that no attachment lacks room, and no more than many ranks can map of each other, in
/// several transports. Throws Error(unsupported) where files may not be as large as the control part.
std::size_t file_bytes(int ranks, std::size_t control_bytes) {
  constexpr std::size_t kMostMapped = std::size_t{4} << 40;
  const auto pages = static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
  const std::size_t machine = std::bit_ceil(pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  const std::size_t wanted =
      control_bytes + std::min(machine, std::bit_floor(kMostMapped / static_cast<std::size_t>(ranks)));
  // Memory files count, too, and one that is too large ends the process by SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  if (limit.rlim_cur < control_bytes + kPage)
    throw Error(Errc::unsupported, "shm: shared memory takes a file of " + std::to_string(control_bytes + kPage) +
                                       " bytes, and files may have " + std::to_string(limit.rlim_cur) +
                                       " (`ulimit -f`)");
  return std::min(wanted, static_cast<std::size_t>(limit.rlim_cur) / kPage * kPage);
}

}  // namespace

OwnSegment::OwnSegment(int of_ranks, std::uint64_t word) : ranks(of_ranks), layout(ranks) {
  file = MemoryFile::create(file_bytes(ranks, layout.control_bytes()));
  file.reserve(0, kPage);
  control = file.map(0, layout.control_bytes(), true);
  head = new (control.data()) SegmentHead{.word = word, .sleepers = 0, .outcome = 0, .outcome_text = {}};
  bell = Bell::create();
}

ShmTransport::ShmTransport(std::unique_ptr<Membership> membership, std::unique_ptr<OwnSegment> own,
                           const std::vector<Peer>& peers, std::vector<int> ranks, std::chrono::milliseconds limit,
                           std::chrono::milliseconds longest_sleep)
    : membership_(std::move(membership)),
      own_(std::move(own)),
      limit_(limit),
      rank_(membership_->rank()),
      size_(membership_->size()),
      longest_sleep_(longest_sleep),
      node_(number_of(peers[static_cast<std::size_t>(rank_)].place)),
      ranks_(std::move(ranks)),
      looks_(processors_of(peers, ranks_).value_or(0) < static_cast<int>(ranks_.size()) ? 0 : kLooks),
      description_(description_of(peers, ranks_)),
      out_of_memory_(out_of_memory(rank_)),
      attachments_(own_->file, own_->layout.control_bytes()),
      neighbours_(peers.size()),
      lanes_(peers.size()) {}

void ShmTransport::add_lane(int peer, const Peer& theirs) {
  const SegmentLayout& layout = own_->layout;
  Neighbour& neighbour = neighbours_[static_cast<std::size_t>(peer)];
  processes_.add(peer, theirs.process);
  const MemoryFile file = MemoryFile::open(theirs.process, theirs.descriptor, theirs.file_bytes);
  if (theirs.file_bytes <= layout.control_bytes())
    throw Error(Errc::corrupt, "shm: rank " + std::to_string(peer) + " shares too little memory");
  Mapping control = file.map(0, layout.control_bytes(), true);
  const std::size_t memory_bytes = theirs.file_bytes - layout.control_bytes();
  auto* const head = reinterpret_cast<SegmentHead*>(control.data());
  if (head->word != theirs.word)
    throw Error(Errc::corrupt,
                "shm: process " + std::to_string(theirs.process) + " is not rank " + std::to_string(peer));
  neighbour.control = std::move(control);  // whatever fails from here on, its outcome can be read
  neighbour.bell = Bell::open(theirs.process, theirs.bell);
  neighbour.memory = file.map(layout.control_bytes(), memory_bytes, false);
  const auto ring = [](const Mapping& in, std::size_t at) { return reinterpret_cast<Ring*>(in.data() + at); };
  // Every rank has the others in this order.
  const auto place_of = [&](int rank) {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  };
  const auto stream = [&](const Mapping& in, int from) {
    return StreamEnd(reinterpret_cast<Stream*>(in.data() + layout.stream_at(from)),
                     in.data() + layout.stream_data_at(from), layout.stream_bytes());
  };
  lanes_[static_cast<std::size_t>(peer)] =
      std::make_unique<Lane>(peer,
                             Lane::Ends{.in = ring(own_->control, layout.ring_at(place_of(peer))),
                                        .out = ring(neighbour.control, layout.ring_at(place_of(rank_))),
                                        .stream_in = stream(own_->control, place_of(peer)),
                                        .stream_out = stream(neighbour.control, place_of(rank_)),
                                        .peer = head,
                                        .memory = {neighbour.memory.data(), memory_bytes},
                                        .memory_at = layout.control_bytes(),
                                        .bell = &neighbour.bell},
                             table_, attachments_);
}

ShmTransport::~ShmTransport() {
  try {
    if (!origin_.in_forked_child()) close_in_order();
  } catch (const std::exception&) {
    // The transport is shut by now; a destructor has nobody to tell.
  }
}

void ShmTransport::greet(TimePoint until) {
  constexpr std::uint64_t kTag = (std::uint64_t{1} << 48) - 1;
  std::vector<std::byte> words(2 * static_cast<std::size_t>(size_));
  std::vector<Message> round;
  for (const int peer : ranks_) {
    if (peer == rank_) continue;
    round.push_back({.kind = Message::Kind::receive,
                     .peer = peer,
                     .tag = kTag,
                     .data = &words[2 * static_cast<std::size_t>(peer)],
                     .bytes = 1});
    round.push_back({.kind = Message::Kind::send,
                     .peer = peer,
                     .tag = kTag,
                     .data = &words[2 * static_cast<std::size_t>(peer) + 1],
                     .bytes = 1});
  }
  const Ticket ticket = post(round);
  while (!done(ticket)) {
    if (Clock::now() >= until) {
      const std::string silent = waiting_for(ticket);
      const std::lock_guard lock(mutex_);
      fail(Errc::timeout,
           "rank " + std::to_string(rank_) + " shared memory, and heard nothing in time from ranks " + silent, false);
    }
    idle(until);
  }
}

void ShmTransport::attach_pages(std::span<std::byte> pages) {
  if (pages.empty()) return;
  const auto lock = enter();
  require_open();
  try {
    attachments_.attach(pages);
  } catch (const Error& error) {
    fail(error.code(), "rank " + std::to_string(rank_) + ": " + error.what(), false);
  } catch (const std::exception&) {
    fail_as_thrown();
  }
}

void ShmTransport::detach(std::span<std::byte> memory) noexcept {
  if (origin_.in_forked_child()) return;  // the pages are the parent's, who goes on using them
  if (uses(memory)) abort("it took away memory that unfinished messages use");
  const std::lock_guard lock(mutex_);
  attachments_.detach(memory, !failure_);
}

Ticket ShmTransport::post(std::span<const Message> messages) {
  require_valid(messages, rank_, size_);
  const auto lock = enter();
  require_open();
  if (messages.empty()) return 0;
  try {
    Round& round = table_.open();
    const std::uint64_t before = table_.completed_count();
    for (const Message& message : messages)
      if (message.kind == Message::Kind::receive) lane(message.peer).receive(table_.add(round, message));
    if (table_.completed_count() != before) announce();  // what was there already
    for (const Message& message : messages)
      if (message.kind == Message::Kind::send) lane(message.peer).send(table_.add(round, message));
    for (const Message& message : messages) lane(message.peer).ring_bell();
    return RoundTable::ticket(round);
  } catch (const std::exception&) {
    fail_as_thrown();
  }
}

bool ShmTransport::settle(Ticket ticket) {
  const auto lock = enter();
  require_open();
  if (ticket == 0) return true;
  Round* const round = table_.find(ticket);
  if (round == nullptr || round->is_spent)
    throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": this ticket was spent or never given out");
  if (round->incomplete != 0) progress();
  if (round->incomplete != 0) return false;
  round->is_spent = true;
  if (round->lent == 0) table_.close(*round);
  return true;
}

void ShmTransport::release(Ticket ticket) {
  const auto lock = enter();
  require_open();
  Round* const round = table_.find(ticket);
  if (round == nullptr || !round->is_spent) return;
  try {
    for (Request* request = round->first; request != nullptr; request = request->next)
      if (request->state == Request::State::lent) {
        lane(request->message.peer).release(*request);
        lane(request->message.peer).ring_bell();
      }
  } catch (const std::exception&) {
    fail_as_thrown();
  }
  table_.close(*round);
}

std::string ShmTransport::waiting_for(Ticket ticket) const { return rank_list(silent(ticket)); }

std::vector<int> ShmTransport::silent(Ticket ticket) const {
  const auto lock = enter();
  return table_.silent(ticket);
}

bool ShmTransport::lends(Ticket ticket) const {
  const auto lock = enter();
  const Round* const round = table_.find(ticket);
  return round != nullptr && round->is_spent;
}

bool ShmTransport::uses(std::span<const std::byte> memory) const noexcept {
  if (origin_.in_forked_child()) return false;
  const std::lock_guard lock(mutex_);
  return !failure_ && table_.uses(memory);
}

void ShmTransport::require_open() const {
  if (failure_) throw Error(*failure_);
}

void ShmTransport::require_healthy() {
  std::string text;
  try {
    if (const auto loss = membership_->loss()) [[unlikely]]
      text = "rank " + std::to_string(loss->rank) + " lost: " + loss->reason;
  } catch (const std::exception&) {
    fail_as_thrown();
  }
  if (!text.empty()) fail(Errc::peer_lost, text, true);
  look_for_deaths();
}

/// Of its own accord, since rank 0 may be stopped, and whoever hears nothing from it would take a rank for lost that
/// gave up because of the one that was.
void ShmTransport::look_for_deaths() {
  constexpr std::chrono::milliseconds kAskEvery{5};
  const TimePoint now = Clock::now();
  if (!death_) {
    if (now - asked_processes_ < kAskEvery) return;
    asked_processes_ = now;
    if (const auto ended = processes_.ended()) death_ = Death{*ended, now};
    return;
  }
  // The others on this machine see it themselves, and Membership will tell the rest.
  if (now - death_->since >= kDeathGrace)
    fail(Errc::peer_lost, "rank " + std::to_string(death_->peer) + " lost: its process ended", true);
}

void ShmTransport::fail(Errc code, std::string_view message, bool is_known_to_peers) {
  if (!is_known_to_peers) membership_->give_up(message);
  try {
    failure_.emplace(code, std::string(message));
  } catch (const std::exception&) {
    failure_ = out_of_memory_;
  }
  announce();
  wake_sleepers();
  throw Error(*failure_);
}

/// Called where something was caught: whatever it is, the transport is shut, or messages could go on into memory that
/// the caller takes back.
void ShmTransport::fail_as_thrown() {
  try {
    throw;
  } catch (const Error& error) {
    fail(error.code(), error.what(), false);
  } catch (const std::bad_alloc&) {
    fail(Errc::no_memory, out_of_memory_.what(), false);
  } catch (const std::exception& error) {
    fail(Errc::internal, "rank " + std::to_string(rank_) + ": " + error.what(), false);
  }
}

void ShmTransport::abort(std::string_view reason) noexcept {
  if (origin_.in_forked_child()) return;
  {
    entering_.fetch_add(1);
    const std::lock_guard lock(mutex_);
    entering_.fetch_sub(1);
    try {
      if (!failure_)
        failure_.emplace(Errc::peer_lost,
                         "rank " + std::to_string(rank_) + " (this rank) gave up: " + std::string(reason));
    } catch (const std::exception&) {
      failure_ = out_of_memory_;  // for the text: the peers hear of it all the same
    }
    membership_->give_up(reason);
  }
  announce();
  wake_sleepers();
}

void ShmTransport::close_in_order() {
  std::unique_lock lock(mutex_);
  if (failure_) return;
  progress();
  if (table_.incomplete_count() != 0) {
    lock.unlock();
    abort("it closed its transport with messages unfinished");
    return;
  }
  table_.for_each_lent([&](Request& request) { lane(request.message.peer).release(request); });
  // Peers may wait for answers that they have no room for yet.
  const TimePoint until = closing_until(limit_);
  const auto is_held_up = [](const auto& each) { return each != nullptr && each->is_held_up(); };
  for (;;) {
    progress();
    if (std::none_of(lanes_.begin(), lanes_.end(), is_held_up) || membership_->loss() || Clock::now() >= until) break;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  membership_->leave(time_left(until));
}

}  // namespace tightwire::shm
