#pragma once
#include <deque>
#include <string>
#include <vector>

#include "channel.hpp"
#include "handshake.hpp"
#include "listening.hpp"
#include "socket.hpp"

namespace tightwire::rendezvous {

/// A connection whose other end has proven the job key, and waits for its verdict.
struct Newcomer {
  Channel channel;
  Transcript transcript;
  Introduction hello;
  std::string origin;
};

/// Takes connections on behalf of rank 0 and lets through those that prove the key. Whatever strangers do, they cost
/// no more than a bounded number of connections for a bounded time, and hold up nobody.
class Doorkeeper {
 public:
  explicit Doorkeeper(const JoinRequest& request) : request_(request), listening_(listen_for_ranks(request)) {}

  const std::string& key() const noexcept { return listening_.key; }
  const std::string& where() const noexcept { return listening_.where; }

  /// Appends what to wait for, and brings `until` forward to when there is something to do anyway.
  void prepare(std::vector<pollfd>& polled, TimePoint& until) const;
  /// What became of it; `polled` are the entries that `prepare` appended. Throws Error(transport) when there are no
  /// descriptors left.
  std::vector<Newcomer> serve(const pollfd* polled);
  /// Closes the place, so that nobody finds it any more.
  void close();
  /// For a message: how many were turned away; empty when nobody was.
  std::string describe_refused() const;

 private:
  struct Pending {
    Channel channel;
    TimePoint since;
    std::string from;
    Transcript transcript;
    bool settled = false;
  };

  void accept_all();
  bool make_room();
  void serve(Pending& pending, std::vector<Newcomer>& newcomers);
  void on_hello(Pending& pending, const Frame& frame);
  void on_proof(Pending& pending, const Frame& frame, std::vector<Newcomer>& newcomers);
  void refuse(Pending& pending, const std::string& why);

  const JoinRequest& request_;
  Listening listening_;
  std::deque<Pending> pending_;
  TimePoint accept_from_{};
  std::size_t refused_ = 0;
  std::string last_refused_;
};

}  // namespace tightwire::rendezvous
