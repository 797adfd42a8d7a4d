#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/transport.hpp>
#include <tightwire/workspace.hpp>

/// What every transport must do, to be run on one's own: each check on every rank of a job of two or more, each rank a
/// process or a thread. A check that fails throws std::runtime_error. It opens transports itself, since some of them
/// end closed.
///
///     for (const auto& check : testing::transport_checks()) check.run([&] { return my::open(job); });
namespace tightwire::testing {

/// Opens a transport; collective.
using OpenTransport = std::function<std::shared_ptr<Transport>()>;

struct TransportCheck {
  std::string name;
  std::function<void(const OpenTransport&)> run;
};

namespace transport_check {

constexpr std::chrono::seconds kLimit{20};

inline void require(bool is_true, const std::string& what) {
  if (!is_true) throw std::runtime_error("not so: " + what);
}

/// The error that `body` throws, or a failed check.
template <class Body>
Error error_of(const Body& body, const std::string& what) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error(what + ": no error was thrown");
}

inline void finish(Transport& transport, Ticket ticket) {
  const TimePoint until = Clock::now() + kLimit;
  while (!transport.done(ticket)) {
    if (Clock::now() >= until) throw std::runtime_error("still waiting for ranks " + transport.waiting_for(ticket));
    transport.idle(until);
  }
}

inline Message to(int peer, std::uint64_t tag, std::span<std::byte> data) {
  return {.kind = Message::Kind::send, .peer = peer, .tag = tag, .data = data.data(), .bytes = data.size()};
}
inline Message from(int peer, std::uint64_t tag, std::span<std::byte> data) {
  return {.kind = Message::Kind::receive, .peer = peer, .tag = tag, .data = data.data(), .bytes = data.size()};
}
inline Ticket post(Transport& transport, const Message& message) { return transport.post({&message, 1}); }

/// Bytes that only these two numbers give.
inline std::vector<std::byte> content(std::uint64_t a, std::uint64_t b, std::size_t count) {
  std::mt19937_64 generator(a * 1'000'003 + b);
  std::vector<std::byte> bytes(count + 8);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = generator();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  bytes.resize(count);
  return bytes;
}

inline std::string text(std::uint64_t number) { return std::to_string(number); }

/// Every rank sends to and receives from every other one.
inline void exchange(Transport& transport, std::uint64_t tag, std::size_t bytes, std::size_t offset) {
  const auto size = static_cast<std::size_t>(transport.size());
  const auto rank = static_cast<std::uint64_t>(transport.rank());
  std::vector<std::vector<std::byte>> out(size), in(size, std::vector<std::byte>(bytes + offset + 16, std::byte{0x5a}));
  std::vector<Message> round;
  for (std::size_t peer = 0; peer < size; ++peer) {
    out[peer] = content(rank, tag + peer, bytes + offset);
    if (peer == rank) continue;
    round.push_back(from(static_cast<int>(peer), tag, std::span(in[peer]).subspan(offset, bytes)));
    round.push_back(to(static_cast<int>(peer), tag, std::span(out[peer]).subspan(offset)));
  }
  finish(transport, transport.post(round));
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const std::string what = text(bytes) + " bytes at offset " + text(offset) + " from rank " + text(peer);
    const auto expected = content(peer, tag + rank, bytes + offset);
    require(std::memcmp(in[peer].data() + offset, expected.data() + offset, bytes) == 0, what + " are what was sent");
    const auto guard = [](std::byte each) { return each == std::byte{0x5a}; };
    const auto begin = in[peer].begin() + static_cast<std::ptrdiff_t>(offset);
    require(std::all_of(in[peer].begin(), begin, guard) &&
                std::all_of(begin + static_cast<std::ptrdiff_t>(bytes), in[peer].end(), guard),
            what + " stay in their place");
  }
}

inline void barrier(Transport& transport) { exchange(transport, 0xBA221E2, 1, 0); }

/// A barrier that `actor`, which is about to end the transport, leaves last, when no other is in it any more.
inline void barrier_left_last_by(int actor, Transport& transport) {
  barrier(transport);
  std::byte ready{};
  if (transport.rank() != actor) finish(transport, post(transport, to(actor, 0xAC704, {&ready, 1})));
  for (int peer = 0; transport.rank() == actor && peer < transport.size(); ++peer)
    if (peer != actor) finish(transport, post(transport, from(peer, 0xAC704, {&ready, 1})));
}

inline void keeps_every_byte(const OpenTransport& open) {
  const auto transport = open();
  require(transport->size() >= 2, "there are two ranks");
  require(!transport->describe().empty(), "it describes itself");
  for (const std::size_t bytes : {0UL, 1UL, 8UL, 93UL, 4'096UL, 4'097UL, 8'256UL, 65'536UL, 262'145UL, 1'000'001UL})
    for (const std::size_t offset : {0UL, 3UL}) exchange(*transport, bytes, bytes, offset);
  barrier(*transport);
}

/// Tags may need all of their 48 bits to differ.
inline void matches_by_tag_in_any_order_and_by_order_within_a_tag(const OpenTransport& open) {
  const auto transport = open();
  constexpr std::uint64_t kTags = 48;
  const auto tag_of = [](std::uint64_t i) { return (std::uint64_t{1} << (i % kTags)) | (i % 3); };
  const auto bytes_of = [&](std::uint64_t i, std::uint64_t turn) { return content(tag_of(i), turn, 1 + 211 * i); };
  std::vector<std::vector<std::byte>> data;
  std::vector<Ticket> tickets;
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < kTags; ++i) order.push_back(transport->rank() == 0 ? i : kTags - 1 - i);
  data.reserve(2 * kTags);
  for (std::uint64_t turn = 0; turn < 2; ++turn)
    for (const std::uint64_t i : order) {
      data.push_back(bytes_of(i, turn));
      if (transport->rank() == 1) std::fill(data.back().begin(), data.back().end(), std::byte{});
      if (transport->rank() == 0) tickets.push_back(post(*transport, to(1, tag_of(i), data.back())));
      if (transport->rank() == 1) tickets.push_back(post(*transport, from(0, tag_of(i), data.back())));
    }
  for (const Ticket ticket : tickets) finish(*transport, ticket);
  for (std::size_t i = 0; transport->rank() == 1 && i < data.size(); ++i)
    require(data[i] == bytes_of(order[i % kTags], i / kTags), "message " + text(i) + " met its like");
  barrier(*transport);
}

inline void lets_first_messages_cross(const OpenTransport& open) {
  const auto transport = open();
  const int next = (transport->rank() + 1) % transport->size();
  const int previous = (transport->rank() + transport->size() - 1) % transport->size();
  auto out = content(static_cast<std::uint64_t>(transport->rank()), 0, 1'000'000);
  std::vector<std::byte> in(out.size());
  const Ticket sent = post(*transport, to(next, 1, out));
  const TimePoint until = Clock::now() + std::chrono::milliseconds(30);
  while (Clock::now() < until) transport->idle(until);
  finish(*transport, post(*transport, from(previous, 1, in)));
  finish(*transport, sent);
  require(in == content(static_cast<std::uint64_t>(previous), 0, in.size()), "crossing messages are intact");
  barrier(*transport);
}

/// However many messages are matched behind one that comes before its receive.
inline void goes_on_behind_an_early_message(const OpenTransport& open) {
  const auto transport = open();
  const int rank = transport->rank();
  for (const std::size_t bytes : {64UL, 100'000UL}) {
    auto early = content(1, bytes, bytes);
    std::vector<std::byte> word(bytes);
    Ticket sent = 0;
    if (rank == 0) sent = post(*transport, to(1, 1, early));
    for (int turn = 0; rank < 2 && turn < (bytes < 1'000 ? 700 : 4); ++turn)
      for (const int from_rank : {0, 1})
        finish(*transport, post(*transport, rank == from_rank ? to(1 - rank, 2, word) : from(1 - rank, 2, word)));
    if (rank == 1) finish(*transport, post(*transport, from(0, 1, word)));
    require(rank != 1 || word == early, "the early message is intact");
    finish(*transport, sent);
  }
  barrier(*transport);
}

/// A receive may be given the place where its sender has the bytes. They stay there until the receiver releases them,
/// and are in use as long: whichever way a transport takes, this must not show.
inline void lends_what_it_does_not_copy_until_it_is_released(const OpenTransport& open) {
  const auto transport = open();
  const auto rank = static_cast<std::uint64_t>(transport->rank());
  const auto size = static_cast<std::uint64_t>(transport->size());
  const std::uint64_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
  constexpr std::size_t kBytes = 200'000;
  const Workspace memory(2 * kBytes);
  transport->attach_pages(memory.pages());
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    const auto out = content(rank, turn, kBytes), expected = content(previous, turn, kBytes);
    std::copy(out.begin(), out.end(), memory.data());
    const std::byte* place = memory.data() + kBytes;
    Message receive = from(static_cast<int>(previous), 8, memory.span().subspan(kBytes));
    receive.place = &place;
    const Ticket received = post(*transport, receive);
    const Ticket sent = post(*transport, to(static_cast<int>(next), 8, memory.span().first(kBytes)));
    finish(*transport, received);
    const bool is_lent = place != memory.data() + kBytes;
    std::byte is_mine_lent{}, is_theirs_lent{is_lent};
    const std::vector<Message> told = {from(static_cast<int>(next), 9, {&is_mine_lent, 1}),
                                       to(static_cast<int>(previous), 9, {&is_theirs_lent, 1})};
    finish(*transport, transport->post(told));
    require(is_mine_lent == std::byte{0} || !transport->done(sent), "a send whose bytes are in use is not done");
    barrier(*transport);
    require(std::equal(expected.begin(), expected.end(), place), "what was sent is there until it is released");
    transport->release(received);
    finish(*transport, sent);
    barrier(*transport);
  }
  transport->detach(memory.pages());
  barrier(*transport);
}

inline void refuses_what_cannot_work(const OpenTransport& open) {
  const auto transport = open();
  std::byte place{};
  const auto refused = [&](const Message& message, const std::string& what) {
    require(error_of([&] { post(*transport, message); }, what).code() == Errc::invalid_argument, what);
  };
  refused(to(transport->rank(), 1, {&place, 1}), "a message to itself");
  refused(to(transport->size(), 1, {&place, 1}), "a message to a rank that is not there");
  refused(to(transport->rank() == 0 ? 1 : 0, std::uint64_t{1} << 48, {&place, 1}), "a tag of 49 bits");
  require(transport->done(0), "nothing posted is done");
  const int next = (transport->rank() + 1) % transport->size();
  const int previous = (transport->rank() + transport->size() - 1) % transport->size();
  std::byte in{};
  const std::vector<Message> round = {from(previous, 1, {&in, 1}), to(next, 1, {&place, 1})};
  const Ticket ticket = transport->post(round);
  finish(*transport, ticket);
  require(error_of([&] { transport->done(ticket); }, "a spent ticket").code() == Errc::invalid_argument,
          "a spent ticket is recognised");
  barrier(*transport);
}

/// Whoever finds it gets Error(corrupt), the other that or Error(peer_lost); both texts name both sizes.
inline void a_wrong_size_is_found(const OpenTransport& open) {
  const auto transport = open();
  std::vector<std::byte> data(transport->rank() == 0 ? 70'000 : 80'000);
  std::byte place{};
  barrier_left_last_by(1, *transport);
  const Error error = error_of(
      [&] {
        if (transport->rank() == 0) {
          post(*transport, to(1, 9, data));
          finish(*transport, post(*transport, from(1, 10, {&place, 1})));
        } else {
          const Message never = from(0, 9, transport->rank() == 1 ? std::span(data) : std::span(&place, 1));
          finish(*transport, post(*transport, never));
        }
      },
      "a wrong size");
  require(error.code() == Errc::corrupt || error.code() == Errc::peer_lost, error.what());
  for (const char* size : {"70000", "80000"})
    require(std::string(error.what()).find(size) != std::string::npos, std::string(size) + " is in: " + error.what());
}

inline void who_gives_up_is_known_to_all_with_its_reason(const OpenTransport& open) {
  const auto transport = open();
  std::byte place{};
  const int last = transport->size() - 1;
  barrier_left_last_by(last, *transport);
  if (transport->rank() == last) {
    transport->abort("of reason 17");
    require(error_of(
                [&] {
                  post(*transport, from(0, 5, {&place, 1}));
                },
                "after abort")
                    .code() == Errc::peer_lost,
            "it is closed for itself");
    return;
  }
  const TimePoint began = Clock::now();
  const auto wait = [&] { finish(*transport, post(*transport, from(last, 5, {&place, 1}))); };
  const Error error = error_of(wait, "waiting for a rank that gave up");
  require(error.code() == Errc::peer_lost, error.what());
  for (const std::string& part : {"rank " + text(static_cast<std::uint64_t>(last)), std::string("of reason 17")})
    require(std::string(error.what()).find(part) != std::string::npos, part + " is in: " + error.what());
  require(Clock::now() - began < std::chrono::seconds(3), "they hear of it at once");
  require(std::string(error_of(wait, "waiting again").what()) == error.what(), "and again");
}

/// A rank that ends while another one waits for it.
inline void who_closes_too_early_is_known(const OpenTransport& open) {
  auto transport = open();
  barrier_left_last_by(1, *transport);
  std::byte place{};
  if (transport->rank() == 1) {
    post(*transport, from(0, 6, {&place, 1}));
    transport.reset();
    return;
  }
  const Error error = error_of(
      [&] {
        finish(*transport, post(*transport, from(1, 5, {&place, 1})));
      },
      "waiting for a closed transport");
  require(error.code() == Errc::peer_lost, error.what());
  require(std::string(error.what()).find("rank 1") != std::string::npos, std::string("rank 1 is in: ") + error.what());
}

inline void memory_taken_away_ends_it(const OpenTransport& open) {
  const auto transport = open();
  barrier_left_last_by(0, *transport);
  if (transport->rank() != 0) return;  // the others just leave
  std::vector<std::byte> place(100);
  const Ticket ticket = post(*transport, from(1, 5, std::span(place).first(60)));
  transport->detach(std::span(place).last(50));  // which the message reaches into
  require(error_of([&] { transport->done(ticket); }, "its memory is gone").code() == Errc::peer_lost, "it is closed");
}

inline void memory_that_no_message_uses_is_let_go(const OpenTransport& open) {
  const auto transport = open();
  const int next = (transport->rank() + 1) % transport->size();
  const int previous = (transport->rank() + transport->size() - 1) % transport->size();
  auto out = content(static_cast<std::uint64_t>(transport->rank()), 7, 100);
  std::vector<std::byte> memory(300);
  transport->attach(memory);
  const Ticket ticket = post(*transport, from(previous, 7, std::span(memory).subspan(100, 100)));
  transport->detach(std::span(memory).first(100));
  transport->detach(std::span(memory).last(100));
  barrier(*transport);
  finish(*transport, post(*transport, to(next, 7, out)));
  finish(*transport, ticket);
  transport->detach(memory);
  const auto expected = content(static_cast<std::uint64_t>(previous), 7, 100);
  require(std::equal(expected.begin(), expected.end(), memory.begin() + 100), "what came between is intact");
  barrier(*transport);
}

/// Rank 0 waits for all others, of whom the last waits for a word.
inline void says_who_is_waited_for(const OpenTransport& open) {
  const auto transport = open();
  const int last = transport->size() - 1;
  std::vector<std::byte> places(static_cast<std::size_t>(transport->size()));
  std::byte word{};
  if (transport->rank() == last) finish(*transport, post(*transport, from(0, 2, {&word, 1})));
  if (transport->rank() != 0) finish(*transport, post(*transport, to(0, 1, {&word, 1})));
  if (transport->rank() == 0) {
    std::vector<Message> round;
    for (int peer = 1; peer <= last; ++peer)
      round.push_back(from(peer, 1, std::span(places).subspan(static_cast<std::size_t>(peer), 1)));
    const Ticket ticket = transport->post(round);
    const std::string expected = text(static_cast<std::uint64_t>(last));
    const TimePoint until = Clock::now() + kLimit;
    std::string waiting = transport->waiting_for(ticket);
    for (; waiting != expected && Clock::now() < until; waiting = transport->waiting_for(ticket)) {
      require(!transport->done(ticket), "a round of which a message is missing is not done");
      transport->idle(until);
    }
    require(waiting == expected, "it waits for rank " + expected + " and says: " + waiting);
    finish(*transport, post(*transport, to(last, 2, {&word, 1})));
    finish(*transport, ticket);
  }
  barrier(*transport);
}

inline void idles_no_longer_than_asked(const OpenTransport& open) {
  const auto transport = open();
  barrier(*transport);
  for (const int milliseconds : {-5, 0, 20, 20}) {
    const TimePoint began = Clock::now();
    transport->idle(began + std::chrono::milliseconds(milliseconds));
    require(Clock::now() - began < std::chrono::seconds(3), "it returned in time");
  }
  barrier(*transport);
}

inline void one_checksum_protects_frames(const OpenTransport& open) {
  const auto transport = open();
  auto frame = content(1, 2, 1'000);
  const std::uint64_t mine = transport->checksum(frame);
  const auto as_bytes = [](std::uint64_t& number) { return std::as_writable_bytes(std::span(&number, 1)); };
  std::vector<std::uint64_t> theirs(static_cast<std::size_t>(transport->size()), mine);
  std::uint64_t out = mine;
  std::vector<Message> round;
  for (int peer = 0; peer < transport->size(); ++peer) {
    if (peer == transport->rank()) continue;
    round.push_back(from(peer, 3, as_bytes(theirs[static_cast<std::size_t>(peer)])));
    round.push_back(to(peer, 3, as_bytes(out)));
  }
  finish(*transport, transport->post(round));
  for (const std::uint64_t each : theirs) require(each == mine, "every rank has the same checksum of the same bytes");
  require(transport->checksum(frame) == mine, "and has it again");
  frame[717] ^= std::byte{4};
  require(mine == 0 || transport->checksum(frame) != mine, "one bit changes it");
  barrier(*transport);
}

/// Nothing comes, so that only the other thread can end the wait.
inline void is_woken_by_another_thread(const OpenTransport& open) {
  const auto transport = open();
  barrier(*transport);
  std::atomic<bool> over{false};
  std::exception_ptr failure;
  const TimePoint began = Clock::now();
  std::thread sleeper([&] {
    try {
      for (int turn = 0; turn < 5; ++turn) transport->idle(Clock::now() + kLimit);
    } catch (...) {
      failure = std::current_exception();
    }
    over = true;
  });
  while (!over && Clock::now() - began < kLimit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    transport->wake();
  }
  sleeper.join();
  if (failure) std::rethrow_exception(failure);
  require(Clock::now() - began < std::chrono::seconds(10), "five waits end as they are woken");
  barrier(*transport);
}

inline void serves_two_users_side_by_side(const OpenTransport& open) {
  const auto first = open();
  const auto second = open();
  for (std::uint64_t turn = 0; turn < 50; ++turn) {
    exchange(*first, turn % 3, 1 + turn * 977, 0);
    exchange(*second, turn % 3, 1 + turn * 1'103, 0);
  }
  barrier(*first);
  barrier(*second);
}

inline void serves_two_threads_at_once(const OpenTransport& open) {
  const auto transport = open();
  std::vector<std::exception_ptr> failures(2);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 2; ++thread)
    threads.emplace_back([&, thread] {
      try {
        for (std::uint64_t turn = 0; turn < 200; ++turn)
          exchange(*transport, 1000 * (thread + 1) + turn, 1 + turn * 331 % 30'000, 0);
      } catch (...) {
        failures[thread] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  barrier(*transport);
}

}  // namespace transport_check

/// All checks; without those of several threads for a transport that is promised only one.
inline std::vector<TransportCheck> transport_checks(bool threads = true) {
  namespace check = transport_check;
  std::vector<TransportCheck> all = {
      {"keeps_every_byte", check::keeps_every_byte},
      {"matches_by_tag_in_any_order_and_by_order_within_a_tag",
       check::matches_by_tag_in_any_order_and_by_order_within_a_tag},
      {"lets_first_messages_cross", check::lets_first_messages_cross},
      {"goes_on_behind_an_early_message", check::goes_on_behind_an_early_message},
      {"lends_what_it_does_not_copy_until_it_is_released", check::lends_what_it_does_not_copy_until_it_is_released},
      {"refuses_what_cannot_work", check::refuses_what_cannot_work},
      {"a_wrong_size_is_found", check::a_wrong_size_is_found},
      {"who_gives_up_is_known_to_all_with_its_reason", check::who_gives_up_is_known_to_all_with_its_reason},
      {"who_closes_too_early_is_known", check::who_closes_too_early_is_known},
      {"memory_taken_away_ends_it", check::memory_taken_away_ends_it},
      {"memory_that_no_message_uses_is_let_go", check::memory_that_no_message_uses_is_let_go},
      {"says_who_is_waited_for", check::says_who_is_waited_for},
      {"idles_no_longer_than_asked", check::idles_no_longer_than_asked},
      {"one_checksum_protects_frames", check::one_checksum_protects_frames},
      {"serves_two_users_side_by_side", check::serves_two_users_side_by_side},
  };
  if (!threads) return all;
  all.push_back({"serves_two_threads_at_once", check::serves_two_threads_at_once});
  all.push_back({"is_woken_by_another_thread", check::is_woken_by_another_thread});
  return all;
}

}  // namespace tightwire::testing
