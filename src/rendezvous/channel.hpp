#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "descriptor.hpp"

namespace tightwire::rendezvous {

/// What a frame on a control connection says. The numbers are the wire's and never change.
enum class FrameType : std::uint8_t {
  hello = 1,     ///< to rank 0: who wants to join, and its nonce
  welcome = 2,   ///< from rank 0: who listens, and its nonce
  proof = 3,     ///< to rank 0: proof of the key, and where the process lives
  verdict = 4,   ///< from rank 0: its proof, and acceptance or the reason of refusal
  blob = 5,      ///< to rank 0: what the rank gives; from rank 0: what one rank gave
  present = 6,   ///< from rank 0: ranks that have arrived
  failed = 7,    ///< either way: joining failed, and why
  give_up = 8,   ///< to rank 0: the rank stops working, and why
  lost = 9,      ///< from rank 0: a rank is lost, and why
  leaving = 10,  ///< either way: the end of this rank will be no loss
  all_left = 11  ///< from rank 0: every rank is leaving
};

struct Frame {
  FrameType type;
  std::string body;
};

/// A frame as bytes, shared by all the connections it goes out on.
using SharedBytes = std::shared_ptr<const std::string>;
SharedBytes encode_frame(FrameType type, std::string_view body);

/// A non-blocking connection that carries frames. Not thread-safe. Never raises SIGPIPE.
class Channel {
 public:
  Channel() = default;
  /// Frames with a body of more than `limit` bytes end the connection.
  Channel(Descriptor socket, std::size_t limit) : socket_(std::move(socket)), limit_(limit) {}

  int descriptor() const noexcept { return socket_.get(); }
  void set_limit(std::size_t limit) noexcept { limit_ = limit; }

  /// Queues a frame and sends what the kernel takes at once.
  void send(SharedBytes frame);
  void send(FrameType type, std::string_view body) { send(encode_frame(type, body)); }
  /// Sends what the kernel takes at once.
  void flush() noexcept;
  bool has_output() const noexcept { return !output_.empty(); }

  /// Reads what is there. Take the frames with `next` before asking `ended`.
  void receive();
  std::optional<Frame> next();
  /// The other end is gone, or broke the rules; frames that came before are still there.
  bool ended() const noexcept { return ended_; }
  const std::string& end_reason() const noexcept { return end_reason_; }

  /// Tells the other end that nothing follows.
  void finish_sending() noexcept;
  void close() noexcept { socket_.reset(); }

 private:
  void end(std::string reason);

  Descriptor socket_;
  std::size_t limit_ = 0;
  std::string input_;
  std::size_t consumed_ = 0;
  std::deque<SharedBytes> output_;
  std::size_t sent_ = 0;
  bool ended_ = false;
  std::string end_reason_;
};

}  // namespace tightwire::rendezvous
