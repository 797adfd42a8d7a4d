// A rank that dies, stops, gives up or sends the wrong thing: the others get an error that says so, soon, and can end.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include <tightwire/workspace.hpp>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_fault_test {
namespace {

using std::chrono::milliseconds;

class UcxFault : public ::testing::TestWithParam<Network> {
 protected:
  std::unique_ptr<Transport> open(const Rendezvous& rendezvous) const { return GetParam().open(rendezvous); }
};

INSTANTIATE_TEST_SUITE_P(Networks, UcxFault, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

void require_error(const Error& error, Errc code, const std::string& text) {
  require(error.code() == code && std::string(error.what()) == text,
          "error " + std::to_string(static_cast<int>(code)) + " '" + text + "' is thrown; got " +
              std::to_string(static_cast<int>(error.code())) + " '" + error.what() + "'");
}

/// After an error every call throws the same.
void require_closed(Transport& transport, const Error& error) {
  std::byte byte{};
  const Message message = send_to((transport.rank() + 1) % transport.size(), 1, {&byte, 1});
  require_error(error_of([&] { transport.post({&message, 1}); }), error.code(), error.what());
  require_error(error_of([&] { transport.done(0); }), error.code(), error.what());
  require_error(error_of([&] { transport.idle(Clock::now()); }), error.code(), error.what());
  transport.wake();
  transport.abort("again");
}

struct WrongSize {
  std::size_t sent;
  std::size_t expected;
  bool is_early;  ///< it arrives before the receive is posted
};

void meet_wrong_size(Transport& transport, const WrongSize& wrong) {
  std::vector<std::byte> data(std::max(wrong.sent, wrong.expected) + 64, std::byte{0x77});
  const bool is_receiver = transport.rank() == 1;
  const auto place = std::span(data).first(is_receiver ? wrong.expected : wrong.sent);
  if (is_receiver == wrong.is_early) std::this_thread::sleep_for(milliseconds(20));
  const Message message = is_receiver ? receive_from(0, 5, place) : send_to(1, 5, place);
  std::byte never{};
  const Message reply = is_receiver ? send_to(0, 6, {&never, 0}) : receive_from(1, 6, {&never, 1});
  const Error error = error_of([&] {
    wait(transport, transport.post({&message, 1}));
    if (!is_receiver) wait(transport, transport.post({&reply, 1}));
  });
  const std::string text = "frame from rank 0 with tag 5: expected " + std::to_string(wrong.expected) + " bytes, got " +
                           std::to_string(wrong.sent);
  if (is_receiver)
    require_error(error, Errc::corrupt, text);
  else
    require_error(error, Errc::peer_lost, "rank 1 lost: " + text);
  require(std::all_of(data.begin() + static_cast<std::ptrdiff_t>(place.size()), data.end(),
                      [](std::byte value) { return value == std::byte{0x77}; }),
          "nothing is written behind the buffer");
  require_closed(transport, error);
}

TEST_P(UcxFault, RefusesAFrameOfTheWrongSize) {
  for (const auto& [sent, expected] : std::vector<std::pair<std::size_t, std::size_t>>{
           {9, 8}, {8, 9}, {0, 1}, {50'000, 49'999}, {49'999, 50'000}, {1 << 20, 1'000}, {1'000, 1 << 20}})
    for (const bool is_early : {false, true}) {
      const auto results = run_ranks(2, [&, sent = sent, expected = expected](const Rendezvous& rendezvous) {
        meet_wrong_size(*open(rendezvous), {.sent = sent, .expected = expected, .is_early = is_early});
        return 0;
      });
      EXPECT_EQ(complaints(results), "");
      for (const RankResult& result : results) EXPECT_EQ(result.text, "");
    }
}

enum class Scene {
  everybody_sends_large,  ///< transfers between all ranks when the victim dies
  victim_receives,        ///< the survivors send large messages that the victim never takes
  survivors_sleep,        ///< the survivors wait for words that never come
  victim_sends,           ///< the survivors read the victim's memory when it dies
  survivors_hold          ///< they were lent the victim's memory, and read it on
};

/// Frames as a Session has them: in pages that a transport may share, received where their sender has them.
void hold_frames(Transport& transport, int victim) {
  constexpr std::size_t kFrame = 1UL << 20;
  const Workspace memory(2 * kFrame);
  const bool is_victim = transport.rank() == victim;
  std::fill(memory.data(), memory.data() + kFrame, std::byte{static_cast<unsigned char>(is_victim ? 77 : 78)});
  transport.attach_pages(memory.pages());
  const std::byte* place = memory.data() + kFrame;
  bool is_there = false;
  const auto holds = [&] {
    return !is_there || std::count(place, place + kFrame, std::byte{77}) == std::ptrdiff_t{kFrame};
  };
  try {
    std::vector<Message> round;
    for (int peer = 0; is_victim && peer < 2; ++peer) round.push_back(send_to(peer, 1, memory.span().first(kFrame)));
    if (!is_victim) round.push_back(receive_from(victim, 1, memory.span().last(kFrame)));
    if (!is_victim) round.back().place = &place;
    const Ticket ticket = transport.post(round);
    if (!is_victim) wait(transport, ticket);
    is_there = !is_victim;
    std::byte never{};
    const Message word = receive_from(is_victim ? 0 : victim, 2, {&never, 1});
    const Ticket waiting = transport.post({&word, 1});
    for (;;) {
      require(holds(), "what was lent stays while its owner lives");
      require(!transport.done(waiting), "nobody sends a word");
      transport.idle(Clock::now() + milliseconds(1));
    }
  } catch (const Error&) {
    require(holds(), "and when it is dead");
    transport.detach(memory.pages());
    require(memory.data()[kFrame - 1] == std::byte{78}, "our own frames stay, too");
    throw;
  }
}

void play(Transport& transport, Scene scene, int victim) {
  if (scene == Scene::survivors_hold) return hold_frames(transport, victim);
  constexpr std::size_t kBytes = 8UL << 20;
  const bool is_victim = transport.rank() == victim;
  std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(kBytes));
  std::vector<std::byte> out(kBytes);
  for (std::uint64_t turn = 0;; ++turn) {
    std::vector<Message> round;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == transport.rank()) continue;
      const bool sends = scene == Scene::everybody_sends_large || (scene == Scene::victim_receives && peer == victim) ||
                         (scene == Scene::victim_sends && is_victim);
      const bool receives = scene == Scene::everybody_sends_large || (scene == Scene::survivors_sleep && !is_victim) ||
                            (scene == Scene::victim_sends && !is_victim && peer == victim);
      if (receives) round.push_back(receive_from(peer, turn, in[static_cast<std::size_t>(peer)]));
      if (sends) round.push_back(send_to(peer, turn, out));
    }
    wait(transport, transport.post(round));
    if (round.empty()) transport.idle(Clock::now() + milliseconds(100));
  }
}

class UcxKilledPeer : public UcxFault {
 protected:
  /// Rank 2 of 3 ends without a word at some moment of the scene; the others must know within a second.
  void kill_in(Scene scene, int repeat) {
    struct Death {
      std::atomic<TimePoint::rep> at;
      std::atomic<TimePoint::rep> longest;
    };
    const Shared<Death> death;
    const auto results = run_ranks(3, [&](const Rendezvous& rendezvous) {
      auto transport = open(rendezvous);
      barrier(*transport);
      std::thread killer;
      if (rendezvous.rank == 2)
        killer = std::thread([&] {
          std::mt19937_64 generator(static_cast<std::uint64_t>(repeat));
          std::this_thread::sleep_for(std::chrono::microseconds(10'000 + generator() % 50'000));
          death->at = Clock::now().time_since_epoch().count();
          raise(SIGKILL);
        });
      const Error error = error_of([&] { play(*transport, scene, 2); });
      const auto late = Clock::now().time_since_epoch() - Clock::duration(death->at.load());
      require(late < std::chrono::seconds(1), "the loss is noticed within a second");
      death->longest = std::max(death->longest.load(), late.count());  // two ranks at once may lose one of two values
      require_error(error, Errc::peer_lost, "rank 2 lost: its process ended");
      require_closed(*transport, error);
      const TimePoint closing = Clock::now();
      transport.reset();
      require(Clock::now() - closing < milliseconds(500), "a broken transport closes at once");
      return 0;
    });
    longest_ = std::max(longest_, Clock::duration(death->longest.load()));
    RecordProperty("longest_microseconds",
                   std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(longest_).count()));
    EXPECT_EQ(results[2].signal, SIGKILL);
    for (const int survivor : {0, 1}) {
      const RankResult& result = results[static_cast<std::size_t>(survivor)];
      EXPECT_EQ(result.exit_status, 0) << "rank " << survivor << ", signal " << result.signal << ": " << result.text;
      EXPECT_EQ(result.text, "") << "UCX must not write into the program's output";
    }
  }

 private:
  Clock::duration longest_{};
};

INSTANTIATE_TEST_SUITE_P(Networks, UcxKilledPeer, ::testing::ValuesIn(all_networks()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(UcxKilledPeer, IsNoticedWhileEverybodySendsLargeMessages) {
  for (int repeat = 0; repeat < 10; ++repeat) kill_in(Scene::everybody_sends_large, repeat);
}

TEST_P(UcxKilledPeer, IsNoticedBySenders) {
  for (int repeat = 0; repeat < 10; ++repeat) kill_in(Scene::victim_receives, repeat);
}

TEST_P(UcxKilledPeer, IsNoticedByReceivers) {
  for (int repeat = 0; repeat < 10; ++repeat) kill_in(Scene::victim_sends, repeat);
}

TEST_P(UcxKilledPeer, IsNoticedBySleepers) {
  for (int repeat = 0; repeat < 10; ++repeat) kill_in(Scene::survivors_sleep, repeat);
}

TEST_P(UcxKilledPeer, LeavesWhatItHadLent) {
  for (int repeat = 0; repeat < 3; ++repeat) kill_in(Scene::survivors_hold, repeat);
}

}  // namespace
}  // namespace tightwire::testing::ucx_fault_test
