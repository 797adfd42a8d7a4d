#include "lane.hpp"

#include <algorithm>
#include <string>

namespace tightwire::shm {
namespace {

/// Records of one peer that are read before the others get their turn.
constexpr int kRecordsAtOnce = 64;
/// Parts of a stream, of a quarter each, that are moved before the others get their turn.
constexpr int kPartsAtOnce = 4;
/// Bytes that are copied before the others get their turn.
constexpr std::size_t kCopiedAtOnce = std::size_t{1} << 20;

}  // namespace

Lane::Lane(int peer, const Ends& ends, RoundTable& table, const Attachments& attachments)
    : peer_(peer),
      table_(table),
      attachments_(attachments),
      in_(ends.in),
      out_(ends.out),
      stream_in_(ends.stream_in),
      stream_out_(ends.stream_out),
      peer_head_(ends.peer),
      peer_bell_(ends.bell),
      memory_(ends.memory),
      memory_at_(ends.memory_at) {}

void Lane::refuse(const std::string& what) const {
  throw Error(Errc::corrupt, "frame from rank " + std::to_string(peer_) + what);
}

void Lane::refuse_place() const {
  refuse(": it says that it has read or written up to a place in shared memory that cannot be");
}

void Lane::send(Request& request) {
  const Message& message = request.message;
  RecordFields fields{.kind = RecordKind::bytes, .tag = message.tag, .bytes = message.bytes};
  if (message.bytes <= kLargestInline) return put(fields, &request);
  const auto offset = attachments_.offset_of({message.data, message.bytes});
  fields.kind = offset ? RecordKind::offer : RecordKind::staged_offer;
  fields.offset = offset.value_or(0);
  fields.id = offer(request);
  put(fields);
}

std::uint64_t Lane::offer(Request& request) {
  if (free_offers_.empty()) {
    free_offers_.reserve(offers_.size() + 1);
    free_offers_.push_back(static_cast<std::uint32_t>(offers_.size()));
    offers_.emplace_back();
  }
  const std::uint32_t slot = free_offers_.back();
  free_offers_.pop_back();
  offers_[slot] = {.request = &request, .generation = offers_[slot].generation + 1};
  return std::uint64_t{offers_[slot].generation} << 32 | slot;
}

Request& Lane::answered(std::uint64_t id) {
  const std::uint64_t slot = id & 0xFFFF'FFFFU;
  if (slot >= offers_.size() || offers_[slot].request == nullptr || offers_[slot].generation != id >> 32)
    refuse(": an answer to what was never offered");
  Request& request = *std::exchange(offers_[slot].request, nullptr);
  free_offers_.push_back(static_cast<std::uint32_t>(slot));
  return request;
}

void Lane::put(const RecordFields& fields, Request* sent) {
  if (outgoing_.empty() && push(fields, sent)) return;
  Outgoing& outgoing = outgoing_records_.take();
  outgoing.fields = fields;
  outgoing.sent = sent;
  outgoing_.push(outgoing);
}

bool Lane::push(const RecordFields& fields, Request* sent) {
  const bool is_there =
      sent == nullptr ? out_.push(fields, nullptr, 0) : out_.push(fields, sent->message.data, sent->message.bytes);
  if (!out_.is_sound()) refuse_place();
  if (!is_there) return false;
  left_something_ = true;
  if (sent != nullptr) table_.complete(*sent);
  return true;
}

bool Lane::flush() {
  bool moved = false;
  while (!outgoing_.empty() && push(outgoing_.front().fields, outgoing_.front().sent)) {
    outgoing_records_.give_back(outgoing_.pop());
    moved = true;
  }
  return moved;
}

void Lane::receive(Request& request) {
  Early* const early = early_.take(request.message.tag);
  if (early == nullptr) return receives_.push(request);
  meet(request, early->fields, early->in_ring ? early->payload : early->moved.data());
  if (early->in_ring) in_.let_go(early->entry);
  early->in_ring = false;
  early_records_.give_back(*early);
}

void Lane::meet(Request& request, const RecordFields& fields, const std::byte* payload) {
  const Message& message = request.message;
  if (fields.bytes != message.bytes)
    refuse(" with tag " + std::to_string(message.tag) + ": expected " + std::to_string(message.bytes) + " bytes, got " +
           std::to_string(fields.bytes));
  if (fields.kind == RecordKind::bytes) {
    if (fields.bytes != 0) std::memcpy(message.data, payload, fields.bytes);
    return table_.complete(request);
  }
  if (fields.kind == RecordKind::staged_offer) {
    request.moved = 0;
    put({.kind = RecordKind::wanted, .id = fields.id});
    return filling_.push(request);
  }
  const std::uint64_t at = fields.offset - memory_at_;
  if (fields.offset < memory_at_ || at > memory_.size() || fields.bytes > memory_.size() - at)
    refuse(": its place " + std::to_string(fields.offset) + " is not in the memory that rank " + std::to_string(peer_) +
           " shares");
  if (message.place != nullptr) {
    *message.place = memory_.data() + at;
    request.id = fields.id;
    return table_.lend(request);
  }
  request.moved = 0;
  request.source = memory_.data() + at;
  request.id = fields.id;
  copying_.push(request);
}

void Lane::release(Request& request) {
  request.state = Request::State::complete;
  --request.round->lent;
  put({.kind = RecordKind::taken, .id = request.id});
}

void Lane::keep(const RingReader::Entry& entry) {
  Early& early = early_records_.take();
  early.fields = entry.fields;
  early.payload = entry.payload;
  early.entry = entry.number;
  early.in_ring = entry.fields.kind == RecordKind::bytes;
  if (!early.in_ring) in_.let_go(entry.number);
  early_.push(early);
}

void Lane::empty_ring() {
  for (Early& early : early_records_.all()) {
    if (!early.in_ring) continue;
    early.moved.assign(early.payload, early.payload + early.fields.bytes);
    early.in_ring = false;
    in_.let_go(early.entry);
  }
}

void Lane::on_record(const RingReader::Entry& entry) {
  const RecordFields& fields = entry.fields;
  switch (fields.kind) {
    case RecordKind::bytes:
    case RecordKind::offer:
    case RecordKind::staged_offer: {
      Request* const request = receives_.take(fields.tag);
      if (request == nullptr) return keep(entry);
      meet(*request, fields, entry.payload);
      break;
    }
    case RecordKind::taken: table_.complete(answered(fields.id)); break;
    case RecordKind::wanted: {
      Request& request = answered(fields.id);
      request.moved = 0;
      pouring_.push(request);
      break;
    }
    case RecordKind::skip: break;
    default: refuse(": a record of unknown kind " + std::to_string(static_cast<std::uint32_t>(fields.kind)));
  }
  in_.let_go(entry.number);
}

bool Lane::read_ring() {
  bool moved = false;
  for (int record = 0; record < kRecordsAtOnce && in_.has_next(); ++record) {
    const RingReader::Entry entry = in_.next();
    if (!in_.is_sound()) refuse(": a record of " + std::to_string(entry.fields.bytes) + " bytes, which has no room");
    on_record(entry);
    // Asked after every record: what was matched behind an early message fills the ring as well as that itself.
    if (in_.held_bytes() > kMostHeld) empty_ring();
    moved = true;
  }
  return moved;
}

bool Lane::pour() {
  bool moved = false;
  for (int part = 0; part < kPartsAtOnce && !pouring_.empty(); ++part) {
    Request& request = pouring_.front();
    const std::size_t count =
        stream_out_.write(request.message.data + request.moved, request.message.bytes - request.moved);
    if (!stream_out_.is_sound()) refuse_place();
    if (count == 0) break;
    moved = left_something_ = true;
    request.moved += count;
    if (request.moved == request.message.bytes) table_.complete(pouring_.pop());
  }
  return moved;
}

bool Lane::fill() {
  bool moved = false;
  for (int part = 0; part < kPartsAtOnce && !filling_.empty(); ++part) {
    Request& request = filling_.front();
    const std::size_t count =
        stream_in_.read(request.message.data + request.moved, request.message.bytes - request.moved);
    if (!stream_in_.is_sound()) refuse_place();
    if (count == 0) break;
    moved = left_something_ = true;
    request.moved += count;
    if (request.moved == request.message.bytes) table_.complete(filling_.pop());
  }
  return moved;
}

bool Lane::copy() {
  const bool moved = !copying_.empty();
  for (std::size_t left = kCopiedAtOnce; left != 0 && !copying_.empty();) {
    Request& request = copying_.front();
    const std::size_t count = std::min(left, request.message.bytes - request.moved);
    if (count != 0) std::memcpy(request.message.data + request.moved, request.source + request.moved, count);
    left -= count;
    request.moved += count;
    if (request.moved != request.message.bytes) break;
    put({.kind = RecordKind::taken, .id = request.id});
    table_.complete(copying_.pop());
  }
  return moved;
}

bool Lane::progress() {
  bool moved = !outgoing_.empty() && flush();
  moved = read_ring() || moved;
  moved = pour() || moved;
  moved = fill() || moved;
  moved = copy() || moved;
  ring_bell();
  return moved;
}

bool Lane::has_news() const noexcept {
  if (!outgoing_.empty()) {
    const Request* const sent = outgoing_.front().sent;
    if (out_.can_push(sent == nullptr ? 0 : sent->message.bytes)) return true;
  }
  return in_.has_next() || !copying_.empty() || (!filling_.empty() && stream_in_.can_read()) ||
         (!pouring_.empty() && stream_out_.can_write());
}

void Lane::ring_bell() noexcept {
  if (in_.freed_much()) left_something_ = true;
  if (!std::exchange(left_something_, false)) return;
  // Who goes to sleep says so first and then looks for news; we do both the other way round.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer_head_->sleepers.load(std::memory_order_relaxed) == 0) return;
  peer_bell_->ring();
}

}  // namespace tightwire::shm
