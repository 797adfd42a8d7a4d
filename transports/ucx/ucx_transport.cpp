#include "ucx_transport.hpp"

#include <algorithm>
#include <new>

#include "checksum.hpp"
#include "error_text.hpp"

namespace tightwire::ucx {
namespace {

constexpr int kTagBits = 48;

/// A UCP tag is the sender's rank and the tag of the message, so that equal tags of two senders do not meet.
std::uint64_t wire_tag(int sender, std::uint64_t tag) noexcept { return std::uint64_t(sender) << kTagBits | tag; }

/// How long UCX's word of a lost peer waits for Membership's, which knows the reason, and for that of another part,
/// which knows whether the peer gave up because of another (kDeathGrace).
constexpr std::chrono::milliseconds kReasonGrace{200};

constexpr std::uint64_t kHello = 0x7477'7563'7821'0001;  ///< first word between two ranks: also the byte order

/// Second word.
constexpr std::uint64_t kOnlyMemory = 1;      ///< all connections of this rank go through memory
constexpr std::uint64_t kWantsChecksums = 2;  ///< whatever they go through

}  // namespace

UcxTransport::UcxTransport(std::unique_ptr<Membership> membership, std::unique_ptr<Connections> connections,
                           std::chrono::milliseconds limit, std::chrono::milliseconds longest_sleep)
    : membership_(std::move(membership)),
      connections_(std::move(connections)),
      limit_(limit),
      longest_sleep_(longest_sleep),
      rank_(membership_->rank()),
      size_(membership_->size()),
      out_of_memory_(out_of_memory(rank_)) {}

UcxTransport::~UcxTransport() {
  if (origin_.in_forked_child()) {
    // Its sockets are the parent's: to close them in any way would say so to the peers.
    static_cast<void>(connections_.release());
    return;
  }
  try {
    close_in_order();
  } catch (const std::exception&) {
    // The transport is shut by now; a destructor has nobody to tell.
  }
}

std::vector<std::uint64_t> UcxTransport::exchange(std::uint64_t word, TimePoint until) {
  std::vector<std::uint64_t> heard(static_cast<std::size_t>(size_), word);
  std::vector<Message> round;
  for (int peer = 0; peer < size_; ++peer) {
    if (connections_->endpoint(peer) == nullptr) continue;
    const auto add = [&](Message::Kind kind, std::uint64_t& place) {
      round.push_back({.kind = kind,
                       .peer = peer,
                       .tag = (std::uint64_t{1} << kTagBits) - 1,
                       .data = reinterpret_cast<std::byte*>(&place),
                       .bytes = sizeof(place)});
    };
    add(Message::Kind::receive, heard[static_cast<std::size_t>(peer)]);
    add(Message::Kind::send, word);
  }
  // Each is answered. So UCX learns now by what number a peer knows this rank, and not with the first large message: a
  // reply that is still behind such messages when a peer dies is a failed assertion of UCX 1.13, built as in Debian.
  const Ticket ticket = start(round, &ucp_tag_send_sync_nbx);
  while (!done(ticket)) {
    if (Clock::now() >= until) {
      const std::string silent = waiting_for(ticket);
      const Entry entry = enter();
      fail(Errc::timeout, "rank " + std::to_string(rank_) + " could not connect over UCX in time to ranks " + silent,
           false);
    }
    idle(until);
  }
  return heard;
}

void UcxTransport::connect(const std::vector<Peer>& peers, const std::vector<int>& ranks, Checksums checksums,
                           TimePoint until) {
  {
    const Entry entry(mutex_);
    try {
      connections_->connect(peers, ranks);
    } catch (const std::exception&) {
      fail_as_thrown();
    }
  }
  const std::vector<std::uint64_t> greetings = exchange(kHello, until);
  {
    const Entry entry(mutex_);
    for (std::size_t peer = 0; peer < greetings.size(); ++peer)
      if (greetings[peer] != kHello)
        fail(Errc::corrupt, "rank " + std::to_string(peer) + " greeted with something else than tightwire's word",
             false);
  }
  // What UCX really uses is known only now, and each rank knows it of its own connections.
  const std::uint64_t own =
      (connections_->only_memory() ? kOnlyMemory : 0) | (checksums == Checksums::always ? kWantsChecksums : 0);
  const std::vector<std::uint64_t> words = exchange(own, until);
  shares_memory_ = std::all_of(words.begin(), words.end(), [](auto word) { return (word & kOnlyMemory) != 0; });
  checksums_ = !shares_memory_ ||
               std::any_of(words.begin(), words.end(), [](auto word) { return (word & kWantsChecksums) != 0; });
  const Entry entry(mutex_);
  description_ = "ucx " + version() + ": " + connections_->describe() + (checksums_ ? ", checksums" : "");
}

void UcxTransport::attach(std::span<std::byte> memory) {
  if (memory.empty()) return;
  const Entry entry = enter();
  require_open();
  try {
    register_memory(memory);
  } catch (const std::exception&) {
    fail_as_thrown();
  }
}

void UcxTransport::register_memory(std::span<std::byte> memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  Attachment attachment{.memory = memory, .handle = nullptr};
  attachments_.reserve(attachments_.size() + 1);
  const ucs_status_t status = ucp_mem_map(connections_->context(), &params, &attachment.handle);
  if (status != UCS_OK)
    throw Error(Errc::transport, "ucx: registering " + std::to_string(memory.size()) +
                                     " bytes: " + status_text(status) +
                                     " (is the limit on locked memory, `ulimit -l`, at least that large?)");
  attachments_.push_back(attachment);
}

void UcxTransport::detach(std::span<std::byte> memory) noexcept {
  if (origin_.in_forked_child()) return;  // what is registered is the parent's
  if (uses(memory)) abort("it took away memory that unfinished messages use");
  const Entry entry(mutex_);
  const auto found = std::find_if(attachments_.begin(), attachments_.end(), [&](const Attachment& attachment) {
    return attachment.memory.data() == memory.data() && attachment.memory.size() == memory.size();
  });
  if (found == attachments_.end()) return;
  ucp_mem_unmap(connections_->context(), found->handle);
  attachments_.erase(found);
}

bool UcxTransport::uses(std::span<const std::byte> memory) const noexcept {
  if (origin_.in_forked_child()) return false;
  const Entry entry(mutex_);
  return !failure_ && table_.uses(memory);
}

Ticket UcxTransport::post(std::span<const Message> messages) {
  require_valid(messages, rank_, size_);
  return start(messages, &ucp_tag_send_nbx);
}

Ticket UcxTransport::start(std::span<const Message> messages, Send how) {
  const Entry entry = enter();
  require_open();
  if (messages.empty()) return 0;
  try {
    Round& round = table_.open();
    // Receives first: what arrives meanwhile then finds its place and is not stored in between.
    for (const Message& message : messages)
      if (message.kind == Message::Kind::receive) receive(table_.add(round, message), message);
    for (const Message& message : messages)
      if (message.kind == Message::Kind::send) send(table_.add(round, message), message, how);
    return RoundTable::ticket(round);
  } catch (const std::exception&) {
    fail_as_thrown();
  }
}

void UcxTransport::send(Request& request, const Message& message, Send how) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxTransport::on_sent;
  params.user_data = &request;
  void* const ucx =
      how(connections_->endpoint(message.peer), message.data, message.bytes, wire_tag(rank_, message.tag), &params);
  if (ucx == nullptr)
    table_.complete(request);
  else if (UCS_PTR_IS_ERR(ucx))
    table_.fail(request, 0, UCS_PTR_STATUS(ucx));
  else
    request.ucx = ucx;
}

void UcxTransport::receive(Request& request, const Message& message) {
  ucp_request_param_t params{};
  // UCX 1.13 tells the length of a message that is there already only through the callback, hence NO_IMM_CMPL.
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | unsigned{UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
  params.cb.recv = &UcxTransport::on_received;
  params.user_data = &request;
  void* const ucx = ucp_tag_recv_nbx(connections_->worker(), message.data, message.bytes,
                                     wire_tag(message.peer, message.tag), ~std::uint64_t{0}, &params);
  if (UCS_PTR_IS_ERR(ucx))
    table_.fail(request, 0, UCS_PTR_STATUS(ucx));
  else if (request.state == Request::State::under_way)
    request.ucx = ucx;
}

void UcxTransport::on_sent(void* ucx, ucs_status_t status, void* argument) noexcept {
  Request& request = *static_cast<Request*>(argument);
  request.ucx = nullptr;
  if (status == UCS_OK)
    request.table->complete(request);
  else
    request.table->fail(request, 0, status);
  ucp_request_free(ucx);
}

void UcxTransport::on_received(void* ucx, ucs_status_t status, const ucp_tag_recv_info_t* info,
                               void* argument) noexcept {
  Request& request = *static_cast<Request*>(argument);
  request.ucx = nullptr;
  settle_receive(request, status, info->length);
  ucp_request_free(ucx);
}

void UcxTransport::settle_receive(Request& request, ucs_status_t status, std::size_t bytes) noexcept {
  if (status == UCS_OK && bytes == request.message.bytes)
    request.table->complete(request);
  else
    request.table->fail(request, bytes, status == UCS_OK ? UCS_ERR_MESSAGE_TRUNCATED : status);
}

bool UcxTransport::settle(Ticket ticket) {
  const Entry entry = enter();
  require_open();
  if (ticket == 0) return true;
  Round* const round = table_.find(ticket);
  if (round == nullptr)
    throw Error(Errc::invalid_argument, "rank " + std::to_string(rank_) + ": this ticket was spent or never given out");
  if (round->incomplete != 0) progress();
  if (round->incomplete != 0) return false;
  table_.close(*round);
  return true;
}

std::string UcxTransport::waiting_for(Ticket ticket) const { return rank_list(silent(ticket)); }

std::vector<int> UcxTransport::silent(Ticket ticket) const {
  const Entry entry = enter();
  return table_.silent(ticket);
}

std::uint64_t UcxTransport::checksum(std::span<const std::byte> payload) const noexcept {
  if (!checksums_) return 0;
  return std::max<std::uint64_t>(hash(payload), 1);  // 0 would say that there is no checksum
}

void UcxTransport::require_open() const {
  if (failure_) throw Error(*failure_);
}

void UcxTransport::require_healthy() {
  if (table_.failure() || connections_->failure()) [[unlikely]]
    act_on_failure();
  if (const auto loss = membership_->loss()) [[unlikely]]
    fail(Errc::peer_lost, "rank " + std::to_string(loss->rank) + " lost: " + loss->reason, true);
}

void UcxTransport::act_on_failure() {
  if (const auto& failed = table_.failure(); failed && failed->status == UCS_ERR_MESSAGE_TRUNCATED)
    fail(Errc::corrupt,
         "frame from rank " + std::to_string(failed->peer) + " with tag " + std::to_string(failed->tag) +
             ": expected " + std::to_string(failed->expected_bytes) + " bytes, got " +
             std::to_string(failed->received_bytes),
         false);
  if (!suspicion_) {
    const auto& endpoint = connections_->failure();
    const auto& message = table_.failure();
    suspicion_ = endpoint ? Suspicion{endpoint->peer, endpoint->status, Clock::now()}
                          : Suspicion{message->peer, message->status, Clock::now()};
    if (!is_about_peer(suspicion_->status))
      fail(code_of(suspicion_->status),
           "rank " + std::to_string(rank_) + ": UCX failed here, with a message to or from rank " +
               std::to_string(suspicion_->peer) + ": " + status_text(suspicion_->status) + LogCapture::text(),
           false);
  }
  if (Clock::now() - suspicion_->since < kReasonGrace || membership_->loss()) return;
  fail(Errc::peer_lost,
       "rank " + std::to_string(suspicion_->peer) + " lost: its connection failed (" + status_text(suspicion_->status) +
           "); it may have given up because of another rank" + LogCapture::text(),
       false);
}

void UcxTransport::fail(Errc code, std::string_view message, bool is_known_to_peers) {
  if (!is_known_to_peers) membership_->give_up(message);
  try {
    failure_.emplace(code, std::string(message));
  } catch (const std::exception&) {
    failure_ = out_of_memory_;
  }
  shut();
  throw Error(*failure_);
}

/// Called where something was caught: whatever it is, the transport is shut, or messages could go on into memory that
/// the caller takes back.
void UcxTransport::fail_as_thrown() {
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

/// `failure_` says why.
void UcxTransport::shut() noexcept {
  table_.cancel_receives(connections_->worker());
  for (const Attachment& attachment : attachments_) ucp_mem_unmap(connections_->context(), attachment.handle);
  attachments_.clear();
  connections_->drop();
  news_.announce();
}

void UcxTransport::wake() noexcept {
  if (!origin_.in_forked_child()) news_.announce();
}

void UcxTransport::abort(std::string_view reason) noexcept {
  if (origin_.in_forked_child()) return;
  const Entry entry(mutex_);
  const bool is_news = !failure_;
  try {
    // First, or a thread of this rank could hear of the peers that end because of it.
    if (is_news)
      failure_.emplace(Errc::peer_lost,
                       "rank " + std::to_string(rank_) + " (this rank) gave up: " + std::string(reason));
  } catch (const std::exception&) {
    failure_ = out_of_memory_;  // for the text: the peers hear of it all the same
  }
  membership_->give_up(reason);
  if (is_news) shut();
}

void UcxTransport::close_in_order() {
  Entry entry(mutex_);
  if (failure_) return;
  ucp_worker_progress(connections_->worker());
  if (table_.incomplete_count() != 0) {
    entry.lock.unlock();
    abort("it closed its transport with messages unfinished");
    return;
  }
  const TimePoint until = closing_until(limit_);
  // Peers may still wait for our last messages, which UCX may still hold; once flushed they need no help from us.
  const bool is_flushed = connections_->flush(until, [this] { return membership_->loss().has_value(); });
  if (is_flushed) membership_->leave(time_left(until));
  for (const Attachment& attachment : attachments_) ucp_mem_unmap(connections_->context(), attachment.handle);
  attachments_.clear();
  if (is_flushed && !membership_->loss())
    connections_->close(until);
  else
    connections_->drop();
}

}  // namespace tightwire::ucx
