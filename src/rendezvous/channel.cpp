#include "channel.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "errno_text.hpp"
#include "wire.hpp"

namespace tightwire::rendezvous {
namespace {

constexpr std::size_t kHeaderBytes = 5;

std::string describe_end(int error) {
  switch (error) {
    case 0:
    case ECONNRESET:
    case EPIPE: return "its process ended";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH: return "its host stopped answering: " + errno_text(error);
    default: return "its control connection failed: " + errno_text(error);
  }
}

}  // namespace

SharedBytes encode_frame(FrameType type, std::string_view body) {
  std::string bytes;
  bytes.reserve(kHeaderBytes + body.size());
  put_u32(bytes, static_cast<std::uint32_t>(body.size()));
  bytes += static_cast<char>(type);
  bytes += body;
  return std::make_shared<const std::string>(std::move(bytes));
}

void Channel::send(SharedBytes frame) {
  output_.push_back(std::move(frame));
  flush();
}

void Channel::flush() noexcept {
  while (!output_.empty()) {
    const std::string& front = *output_.front();
    const ssize_t count =
        ::send(socket_.get(), front.data() + sent_, front.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      // Reading tells the end: the other side may have said why before it went.
      output_.clear();
      sent_ = 0;
      return;
    }
    sent_ += static_cast<std::size_t>(count);
    if (sent_ == front.size()) {
      output_.pop_front();
      sent_ = 0;
    }
  }
}

void Channel::receive() {
  std::array<char, 65536> buffer;
  while (!ended_ && input_.size() - consumed_ < limit_ + kHeaderBytes) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      input_.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0) {
      end(describe_end(0));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      end(describe_end(errno));
    }
  }
}

std::optional<Frame> Channel::next() {
  const std::string_view waiting = std::string_view(input_).substr(consumed_);
  if (waiting.size() < kHeaderBytes) return std::nullopt;
  const std::size_t bytes = get_u32(waiting);
  if (bytes > limit_) {
    end("it sent a message of " + std::to_string(bytes) + " bytes where at most " + std::to_string(limit_) +
        " are allowed");
    input_.clear();
    consumed_ = 0;
    return std::nullopt;
  }
  if (waiting.size() < kHeaderBytes + bytes) return std::nullopt;
  Frame frame{static_cast<FrameType>(waiting[4]), std::string(waiting.substr(kHeaderBytes, bytes))};
  consumed_ += kHeaderBytes + bytes;
  if (consumed_ == input_.size() || consumed_ > input_.size() / 2) {
    input_.erase(0, consumed_);
    consumed_ = 0;
  }
  return frame;
}

void Channel::finish_sending() noexcept { ::shutdown(socket_.get(), SHUT_WR); }

void Channel::end(std::string reason) {
  if (ended_) return;
  ended_ = true;
  end_reason_ = std::move(reason);
}

}  // namespace tightwire::rendezvous
