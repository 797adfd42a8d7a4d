#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/cost_model.hpp>
#include <tightwire/frame.hpp>
#include <tightwire/transport.hpp>
#include <tightwire/workspace.hpp>

namespace tightwire {

/// Times what all ranks do together. Every figure is that of the slowest rank, and the same on all.
class JointClock {
 public:
  explicit JointClock(Transport& transport, std::chrono::milliseconds limit = std::chrono::seconds(60))
      : transport_(transport), channel_(transport.next_channel()), limit_(limit) {}

  /// Seconds of `work`, which all ranks begin together.
  template <class Work>
  double seconds(const Work& work) {
    largest(0);
    const TimePoint began = Clock::now();
    work();
    return largest_seconds(std::chrono::duration<double>(Clock::now() - began).count());
  }
  double largest_seconds(double own) {
    return 1e-9 * static_cast<double>(largest(static_cast<std::uint64_t>(1e9 * own)));
  }
  std::uint64_t largest(std::uint64_t own) {
    std::uint64_t most = 0;
    for (const auto& greeting : detail::exchange_greetings(transport_, channel_, {own, 0}, limit_, "measuring"))
      most = std::max(most, greeting.value);
    return most;
  }

 private:
  Transport& transport_;
  std::uint32_t channel_;
  std::chrono::milliseconds limit_;
};

namespace detail {

/// Sizes of the messages by which the rate is measured, ascending: up to 4 MiB, and of a job of many ranks no more than
/// fit into 64 MiB together both ways, or 4 KiB each.
inline std::vector<std::size_t> message_sizes(int ranks) {
  constexpr std::size_t kMemory = std::size_t{32} << 20;
  const std::size_t largest = std::clamp<std::size_t>(std::bit_floor(kMemory / static_cast<std::size_t>(ranks)),
                                                      std::size_t{1} << 12, std::size_t{1} << 22);
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = std::size_t{1} << 14; bytes < largest; bytes *= 4) sizes.push_back(bytes);
  sizes.push_back(largest);
  return sizes;
}

/// Messages of every rank to every other, all at once.
class AllToAll {
 public:
  AllToAll(Transport& transport, std::size_t largest_bytes, std::chrono::milliseconds limit)
      : transport_(transport),
        channel_(transport.next_channel()),
        stride_(largest_bytes),
        limit_(limit),
        memory_(2 * static_cast<std::size_t>(transport.size()) * largest_bytes) {
    transport_.attach_pages(memory_.pages());
  }
  AllToAll(const AllToAll&) = delete;
  AllToAll& operator=(const AllToAll&) = delete;
  ~AllToAll() { transport_.detach(memory_.pages()); }

  /// `count` messages of `bytes` each to and from every peer; together no more than the largest.
  void exchange(std::size_t count, std::size_t bytes) {
    if (count * bytes > stride_) throw Error(Errc::internal, "measuring the link: messages of more than its memory");
    round_.clear();
    for (std::size_t i = 0; i < count; ++i)
      for (int peer = 0; peer < transport_.size(); ++peer) {
        if (peer == transport_.rank()) continue;
        const std::uint64_t tag = message_tag(channel_, FrameKind::greeting, 0, static_cast<std::uint32_t>(i));
        const auto at = static_cast<std::size_t>(peer);
        const auto ranks = static_cast<std::size_t>(transport_.size());
        round_.push_back(
            {Message::Kind::receive, peer, tag, memory_.data() + (ranks + at) * stride_ + i * bytes, bytes});
        round_.push_back({Message::Kind::send, peer, tag, memory_.data() + at * stride_ + i * bytes, bytes});
      }
    wait(transport_, transport_.post(round_), limit_, "measuring the link");
  }

 private:
  Transport& transport_;
  std::uint32_t channel_;
  std::size_t stride_;
  std::chrono::milliseconds limit_;
  Workspace memory_;
  std::vector<Message> round_;
};

}  // namespace detail

/// Measures what messages between the ranks of a transport cost. Collective, the same figures on every rank. Takes
/// about ten times `seconds`, and at least the time of some hundred small messages. Throws Error(invalid_argument) for
/// a single rank, which has no link.
inline LinkCost measure_link(Transport& transport, double seconds = 0.02,
                             std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  if (transport.size() < 2) throw Error(Errc::invalid_argument, "measure_link: one rank alone has no link");
  constexpr std::size_t kSmall = 64, kMany = 16;
  const std::vector<std::size_t> sizes = detail::message_sizes(transport.size());
  constexpr int kTries = 9, kTimes = 10;
  JointClock clock(transport, limit);
  detail::AllToAll traffic(transport, sizes.back(), limit);
  const double peers = transport.size() - 1;
  LinkCost link;
  // Other work on the machine only adds to a time.
  const auto fastest = [&](int tries, const auto& work) {
    double best = clock.seconds(work);
    for (int i = 1; i < tries; ++i) best = std::min(best, clock.seconds(work));
    return best;
  };
  const auto small = [&](std::size_t count) {
    return fastest(kTries,
                   [&] {
                     for (int j = 0; j < kTimes; ++j) traffic.exchange(count, kSmall);
                   }) /
           kTimes;
  };
  const double one = small(1);
  link.message_seconds = std::max(0.0, (small(kMany) - one) / (peers * (kMany - 1)));
  link.latency_seconds = std::max(1e-9, one - peers * link.message_seconds);

  // As many bytes as take long enough; shaped links let the first ones through at once, so only the last of them count.
  std::size_t bytes = 0;
  const auto exchange = [&] { traffic.exchange(1, bytes); };
  for (const std::size_t size : sizes) {
    bytes = size;
    if (clock.seconds(exchange) >= seconds) break;
  }
  const double rest = fastest(5, exchange) - link.latency_seconds - peers * link.message_seconds;
  link.bytes_per_second = peers * static_cast<double>(bytes) / std::max(rest, 1e-9);
  return link;
}

}  // namespace tightwire
