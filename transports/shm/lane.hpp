#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attachments.hpp"
#include "bell.hpp"
#include "queues.hpp"
#include "ring.hpp"
#include "round_table.hpp"
#include "segment.hpp"
#include "stream.hpp"

namespace tightwire::shm {

/// A message that came before its receive.
struct Early {
  Early* next_in_queue = nullptr;
  RecordFields fields;
  const std::byte* payload = nullptr;
  std::uint64_t entry = 0;       ///< of the ring, while the payload is there
  std::vector<std::byte> moved;  ///< the payload, once the ring needed its place
  bool in_ring = false;
};

inline std::uint64_t tag_of(const Early& early) noexcept { return early.fields.tag; }
inline std::uint64_t tag_of(const Request& request) noexcept { return request.message.tag; }

/// Everything between this rank and one other: matching, and the way of the bytes.
///
/// Short messages are copied into the peer's ring, and are sent with that. Of longer ones the ring gets an offer. What
/// lies in attached memory the receiver copies out of the sender's file, or reads there, and says when it is done.
/// Other bytes go through the stream, once the receiver has a place for them. Nothing is sent that the peer has no room
/// for: it waits in a queue here.
///
/// What the peer writes is checked before it is used. Its owner serialises all calls.
class Lane {
 public:
  /// Where both ends of a lane lie in shared memory.
  struct Ends {
    Ring* in;
    Ring* out;
    StreamEnd stream_in;
    StreamEnd stream_out;
    SegmentHead* peer;                  ///< tells who sleeps there
    std::span<const std::byte> memory;  ///< the peer's attached memory,
    std::uint64_t memory_at;            ///< which is at this place of its file
    const Bell* bell = nullptr;         ///< of the peer
  };

  Lane(int peer, const Ends& ends, RoundTable& table, const Attachments& attachments);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void send(Request& request);
  /// Throws Error(corrupt) when a message of another size is there already.
  void receive(Request& request);
  /// Gives back what a receive was lent.
  void release(Request& request);
  /// Moves what can be moved, but of long messages no more than a part at a time, since other threads wait for their
  /// turn. Returns whether anything was. Throws Error(corrupt) for a message of another size than
  /// its receive, and for what no peer of ours would write.
  bool progress();
  /// Whether `progress` has something to do.
  bool has_news() const noexcept;
  /// Whether something waits until the peer has room for it.
  bool is_held_up() const noexcept { return !outgoing_.empty(); }
  /// Wakes the peer, where something was left for it since the last call.
  void ring_bell() noexcept;

 private:
  struct Outgoing {
    Outgoing* next_in_queue = nullptr;
    RecordFields fields;
    Request* sent = nullptr;
  };
  struct Offer {
    Request* request = nullptr;
    std::uint32_t generation = 0;
  };

  /// `sent`: of RecordKind::bytes, the message.
  void put(const RecordFields& fields, Request* sent = nullptr);
  bool push(const RecordFields& fields, Request* sent);
  std::uint64_t offer(Request& request);
  Request& answered(std::uint64_t id);
  bool flush();
  bool read_ring();
  bool pour();
  bool fill();
  bool copy();
  void on_record(const RingReader::Entry& entry);
  void keep(const RingReader::Entry& entry);
  void empty_ring();
  /// A message has met its receive. The payload is that of RecordKind::bytes.
  void meet(Request& request, const RecordFields& fields, const std::byte* payload);
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse_place() const;

  const int peer_;
  RoundTable& table_;
  const Attachments& attachments_;
  RingReader in_;
  RingWriter out_;
  StreamEnd stream_in_;
  StreamEnd stream_out_;
  SegmentHead* const peer_head_;
  const Bell* const peer_bell_;
  const std::span<const std::byte> memory_;
  const std::uint64_t memory_at_;
  bool left_something_ = false;

  TagQueue<Request> receives_;
  TagQueue<Early> early_;
  Pool<Early> early_records_;
  Fifo<Outgoing> outgoing_;
  Pool<Outgoing> outgoing_records_;
  std::vector<Offer> offers_;  ///< by the lower half of their id
  std::vector<std::uint32_t> free_offers_;
  Fifo<Request> pouring_;  ///< sends whose bytes go into the stream
  Fifo<Request> filling_;  ///< receives that get theirs from it
  Fifo<Request> copying_;  ///< receives that get theirs from the peer's memory
};

}  // namespace tightwire::shm
