#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tightwire/frame.hpp>
#include <tightwire/hierarchy.hpp>
#include <tightwire/transport.hpp>

namespace tightwire {

/// FNV-1a. Names things; protects nothing.
constexpr std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// A number that names a run, drawn at random; never 0.
inline std::uint64_t new_run() {
  std::random_device draw;
  return std::max<std::uint64_t>(std::uint64_t{draw()} << 32 | draw(), 1);
}

/// Waits for a round. Throws Error(timeout) that names `what` and the ranks it waits for; the transport is closed then,
/// since the memory of the round is about to go away.
inline void wait(Transport& transport, Ticket ticket, std::chrono::milliseconds limit, std::string_view what) {
  const TimePoint until = deadline_after(limit);
  while (!transport.done(ticket)) {
    if (Clock::now() >= until) {
      const std::string message = "rank " + std::to_string(transport.rank()) + ": " + std::string(what) +
                                  " not done after " + std::to_string(limit.count()) + " ms; waiting for rank " +
                                  transport.waiting_for(ticket);
      transport.abort(message);
      throw Error(Errc::timeout, message);
    }
    transport.idle(until);
  }
}

namespace detail {

/// One 64-byte greeting to and from every other rank: `value` and `bytes` in, those of all ranks by rank out.
struct Greeting {
  std::uint64_t value = 0;
  std::uint64_t bytes = 0;
};

/// `part` tells exchanges apart that follow each other under one channel.
inline std::vector<Greeting> exchange_greetings(Transport& transport, std::uint32_t channel, Greeting mine,
                                                std::chrono::milliseconds limit, std::string_view what,
                                                std::uint32_t part = 0) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto me = static_cast<std::size_t>(transport.rank());
  std::vector<FrameHeader> frames(2 * ranks);
  std::vector<Message> round;
  const std::uint64_t tag = message_tag(channel, FrameKind::greeting, 0, part);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    FrameHeader header{};
    header.kind = static_cast<std::uint8_t>(FrameKind::greeting);
    header.sender = static_cast<std::uint32_t>(me);
    header.fingerprint = mine.value;
    header.nonfinite = mine.bytes;
    auto* out = reinterpret_cast<std::byte*>(&frames[peer]);
    auto* in = reinterpret_cast<std::byte*>(&frames[ranks + peer]);
    frame::seal(transport, out, header);
    round.push_back({Message::Kind::send, static_cast<int>(peer), tag, out, sizeof(FrameHeader)});
    round.push_back({Message::Kind::receive, static_cast<int>(peer), tag, in, sizeof(FrameHeader)});
  }
  if (!round.empty()) wait(transport, transport.post(round), limit, what);
  std::vector<Greeting> all(ranks, mine);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == me) continue;
    FrameHeader expected = frames[ranks + peer];  // value and size are what is asked for
    expected.kind = static_cast<std::uint8_t>(FrameKind::greeting);
    expected.sender = static_cast<std::uint32_t>(peer);
    expected.payload_bytes = 0;
    expected.step = 0;
    const auto header = frame::check(transport, reinterpret_cast<const std::byte*>(&frames[ranks + peer]), expected);
    all[peer] = {header.fingerprint, header.nonfinite};
  }
  return all;
}

/// The first line in which two descriptions differ, as "rank a has ...; rank b has ...".
inline std::string first_difference(int a, std::string_view mine, int b, std::string_view theirs) {
  const auto line = [](std::string_view& text) {
    const std::size_t end = text.find('\n');
    const std::string_view first = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    return first;
  };
  while (!mine.empty() || !theirs.empty()) {
    const std::string_view x = line(mine), y = line(theirs);
    if (x == y) continue;
    const auto name = [](std::string_view text) {
      return text.empty() ? std::string("nothing more") : std::string(text);
    };
    return "rank " + std::to_string(a) + " has " + name(x) + "; rank " + std::to_string(b) + " has " + name(y);
  }
  return "no difference";
}

}  // namespace detail

/// Every rank's value, by rank. Collective; 64 bytes to every peer. For comparing hashes, agreeing on a seed and the
/// like. Throws Error(mismatch) where another rank has none to give (`refuse_to_gather`).
inline std::vector<std::uint64_t> gather_values(Transport& transport, std::uint64_t value,
                                                std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  const auto all =
      detail::exchange_greetings(transport, transport.next_channel(), {value, 0}, limit, "gathering values");
  std::vector<std::uint64_t> values;
  for (const detail::Greeting& greeting : all) {
    if (greeting.bytes != 0)
      throw Error(Errc::mismatch, "rank " + std::to_string(transport.rank()) + ": gathering values: rank " +
                                      std::to_string(values.size()) + " called it with arguments that were refused");
    values.push_back(greeting.value);
  }
  return values;
}
/// In place of `gather_values`, on a rank that cannot take part: the others are told at once, and its next user of the
/// transport has the same number as theirs.
inline void refuse_to_gather(Transport& transport, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  static_cast<void>(detail::exchange_greetings(transport, transport.next_channel(), {0, 1}, limit, "gathering values"));
}

/// What rank 0 chose for all: the first of consecutive channels that nobody else on the transport has, and a number
/// that hardly any other run has.
struct Chosen {
  std::uint32_t first_channel;
  std::uint64_t run;
};
/// Collective; the ranks greet each other under `channel`.
inline Chosen agree_on_channels(Transport& transport, std::uint32_t channel, std::uint32_t count,
                                std::chrono::milliseconds limit) {
  detail::Greeting mine;
  if (transport.rank() == 0) mine = {transport.take_channels(count), new_run()};
  const auto all = detail::exchange_greetings(transport, channel, mine, limit, "agreeing on channels");
  return {static_cast<std::uint32_t>(all[0].value), all[0].bytes};
}

/// The nodes of a job as its transport sees them: ranks that reach each other through memory share one. Collective.
inline Hierarchy detect_nodes(Transport& transport, const Codec& inside = {},
                              std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  Hierarchy hierarchy{.inside = inside};
  const std::vector<std::uint64_t> node_of = gather_values(transport, transport.node(), limit);
  for (const std::uint64_t node : node_of)
    hierarchy.node_of_rank.push_back(
        static_cast<int>(std::find(node_of.begin(), node_of.end(), node) - node_of.begin()));
  return hierarchy;
}

/// Makes sure that every rank gave the same description, and returns its fingerprint. Collective. Throws
/// Error(mismatch) on every rank that names two ranks and the first line in which they differ. Fixed-size messages go
/// first; texts are sent only between ranks that differ, so that no rank waits for what another will not send.
template <class Once = void>  // see core_session.hpp
std::uint64_t agree(Transport& transport, std::uint32_t channel, const std::string& description,
                    std::chrono::milliseconds limit) {
  constexpr std::uint64_t kLongest = std::uint64_t{256} << 20;
  const std::uint64_t mine = fingerprint(description);
  const auto all = detail::exchange_greetings(transport, channel, {mine, description.size()}, limit,
                                              "agreeing on the plan (every rank must call seal)");
  std::vector<std::string> texts(all.size());
  std::vector<Message> round;
  std::string own = description;
  const std::uint64_t tag = message_tag(channel, FrameKind::greeting, 0, 1);
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (all[peer].value == mine && all[peer].bytes == description.size()) continue;
    if (all[peer].bytes > kLongest)
      throw Error(Errc::corrupt, "rank " + std::to_string(peer) + " describes its plan in " +
                                     std::to_string(all[peer].bytes) + " bytes");
    texts[peer].resize(all[peer].bytes);
    auto* in = reinterpret_cast<std::byte*>(texts[peer].data());
    auto* out = reinterpret_cast<std::byte*>(own.data());
    round.push_back({Message::Kind::send, static_cast<int>(peer), tag, out, own.size()});
    round.push_back({Message::Kind::receive, static_cast<int>(peer), tag, in, texts[peer].size()});
  }
  if (round.empty()) return mine;
  wait(transport, transport.post(round), limit, "comparing plans");
  std::string message = "ranks disagree:";
  for (std::size_t peer = 0; peer < all.size(); ++peer) {
    if (texts[peer].empty() && all[peer].value == mine) continue;
    message += " " + detail::first_difference(transport.rank(), description, static_cast<int>(peer), texts[peer]);
    break;
  }
  // Whoever throws may close what the others still wait by; so nobody does before all have the texts.
  try {
    detail::exchange_greetings(transport, channel, {mine, 0}, limit, "all ranks to have compared plans", 2);
  } catch (const Error&) {  // all that there is to tell is known
  }
  throw Error(Errc::mismatch, message);
}

/// `agree` on what `describe()` returns. Where that throws, the other ranks get Error(mismatch) that names this one and
/// why, in place of waiting for it, and here its own error goes on.
template <class Describe>
std::uint64_t agree_on(Transport& transport, std::uint32_t channel, std::chrono::milliseconds limit,
                       const Describe& describe) {
  std::string text;
  std::exception_ptr failure;
  try {
    text = describe();
  } catch (const std::exception& error) {
    text = std::string("cannot plan: ") + error.what();
    failure = std::current_exception();
  }
  std::uint64_t agreed = 0;
  try {
    agreed = agree(transport, channel, text, limit);
  } catch (const Error&) {
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  return agreed;
}

}  // namespace tightwire
