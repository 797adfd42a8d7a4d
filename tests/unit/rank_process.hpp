#pragma once
#include <poll.h>

#include "rendezvous_support.hpp"

namespace tightwire::testing {

/// A rank as a process of its own: joins, says so, does what it is told, and reports a text.
class RankProcess {
 public:
  using Body = std::function<std::string(Membership&)>;

  RankProcess(const Rendezvous& rendezvous, const Body& body) {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
    output_ = ends[0];
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("fork failed");
    if (process_ != 0) {
      ::close(ends[1]);
      return;
    }
    ::close(ends[0]);
    ::alarm(30);
    run(rendezvous, body, ends[1]);
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (!reaped_) kill(SIGKILL);
    wait();
    ::close(output_);
  }

  /// True once the rank has joined; false when it failed to, and `report` tells why.
  bool has_joined() { return read_until('\n') == "joined"; }
  void kill(int signal) const { ::kill(process_, signal); }
  /// The report, once the process has ended; empty when it did not come to that.
  std::string report() {
    std::string text = read_until('\0');
    wait();
    return text;
  }
  /// As from waitpid.
  int wait() {
    while (!reaped_ && ::waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
    return status_;
  }

 private:
  [[noreturn]] static void run(const Rendezvous& rendezvous, const Body& body, int output) {
    const auto say = [output](const std::string& text) {
      static_cast<void>(!::write(output, text.data(), text.size()));
    };
    try {
      // Never destroyed: the process ends with it, as a crashed one does.
      Membership* const membership = Membership::join(rendezvous, blob_of(rendezvous.rank)).release();
      say("joined\n");
      say(body(*membership));
    } catch (const std::exception& error) {
      say(std::string("failed\n") + error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }

  std::string read_until(char stop) {
    std::string text;
    char byte = 0;
    while (::read(output_, &byte, 1) == 1 && byte != stop) text += byte;
    return text;
  }

  pid_t process_ = -1;
  int output_ = -1;
  int status_ = -1;
  bool reaped_ = false;
};

inline std::int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Sleeps until a loss is noticed and tells it: "2 its process ended @123456".
inline std::string sleep_until_loss(Membership& membership, milliseconds limit = milliseconds(10'000)) {
  pollfd polled{membership.loss_descriptor(), POLLIN, 0};
  if (::poll(&polled, 1, static_cast<int>(limit.count())) <= 0) return "no loss";
  const auto noticed = now_ms();
  const auto loss = membership.loss();
  if (!loss) return "descriptor without loss";
  return std::to_string(loss->rank) + " " + loss->reason + " @" + std::to_string(noticed);
}

struct NoticedLoss {
  std::string text;  ///< "2 its process ended"
  std::int64_t at_ms = 0;
};

inline NoticedLoss parse_loss(const std::string& report) {
  const auto at = report.rfind(" @");
  if (at == std::string::npos) return {report, 0};
  return {report.substr(0, at), std::stoll(report.substr(at + 2))};
}

}  // namespace tightwire::testing
