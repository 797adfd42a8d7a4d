// Agreeing on a description before anything depends on it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/agreement.hpp>
#include <tightwire/core_session.hpp>

#include "support/faulty_transport.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::agreement_test {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{20'000};

std::vector<Outcome> agree_on(const std::vector<std::string>& descriptions, milliseconds limit = kLong) {
  return run_each(local::make(static_cast<int>(descriptions.size())), [&](const std::shared_ptr<Transport>& transport) {
    agree(*transport, transport->next_channel(), descriptions[static_cast<std::size_t>(transport->rank())], limit);
  });
}

TEST(Agreement, EqualDescriptionsGiveOneFingerprint) {
  std::mutex mutex;
  std::set<std::uint64_t> fingerprints;
  run_all(5, [&](const std::shared_ptr<Transport>& transport) {
    const std::uint64_t mine = agree(*transport, transport->next_channel(), "a\nb\n", kLong);
    const std::lock_guard lock(mutex);
    fingerprints.insert(mine);
  });
  EXPECT_EQ(fingerprints, (std::set<std::uint64_t>{fingerprint("a\nb\n")}));
  EXPECT_NE(fingerprint("a\nb\n"), fingerprint("a\nb"));
  EXPECT_NE(fingerprint("ab"), fingerprint("ba"));
}

TEST(Agreement, OneRankThatDiffersIsAnErrorOnAllThatShowsBothLines) {
  for (std::size_t odd = 0; odd < 4; ++odd) {
    std::vector<std::string> descriptions(4, "same\nparameter 0 fp32\nparameter 1 fp32\n");
    descriptions[odd] = "same\nparameter 0 fp32\nparameter 1 bf16\n";
    const auto outcomes = agree_on(descriptions);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(outcomes[rank].error, Errc::mismatch) << rank;
      EXPECT_TRUE(contains(outcomes[rank].message, "parameter 1 fp32"));
      EXPECT_TRUE(contains(outcomes[rank].message, "rank " + std::to_string(odd) + " has parameter 1 bf16"));
    }
  }
}

TEST(Agreement, NobodyLeavesBeforeAllKnowWhatDiffers) {
  // As a Session does, each closes its transport at the error; the text for the last rank is late.
  const auto transports = faulty(3, [](int rank) {
    return [rank](const Message& message) {
      Fault fault;
      if (rank == 1 && message.peer == 2 && message.bytes != sizeof(FrameHeader)) fault.delay = milliseconds{200};
      return fault;
    };
  });
  const auto outcomes = run_each(transports, [](const std::shared_ptr<Transport>& transport) {
    try {
      agree(*transport, transport->next_channel(), transport->rank() == 1 ? "codec int8\n" : "codec exact\n", kLong);
    } catch (const Error& error) {
      transport->abort(error.what());
      throw;
    }
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch) << outcome.message;
    EXPECT_TRUE(contains(outcome.message, "rank 1 has codec int8"));
  }
}

TEST(Agreement, ListsOfDifferentLengthDoNotHang) {
  const auto outcomes = agree_on({"a\nb\nc\nd\ne\n", "a\nb\nc\n", "a\nb\nc\n", ""});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, Errc::mismatch);
  EXPECT_TRUE(contains(outcomes[0].message, "rank 0 has d; rank 1 has nothing more"));
  EXPECT_TRUE(contains(outcomes[1].message, "rank 0 has d"));
  EXPECT_TRUE(contains(outcomes[3].message, "rank 3 has nothing more; rank 0 has a"));
}

TEST(Agreement, EveryRankDifferentIsAnErrorOnEach) {
  const auto outcomes = agree_on({"one\n", "two\n", "three\n", "four\n", "five\n"});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, Errc::mismatch);
}

TEST(Agreement, ALongDifferenceIsComparedInFull) {
  std::string a, b;
  for (int i = 0; i < 20000; ++i) a += "parameter " + std::to_string(i) + "\n";
  b = a;
  b.replace(b.find("parameter 19998"), 15, "parameter ABCDE");
  const auto outcomes = agree_on({a, a, b});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, Errc::mismatch);
    EXPECT_TRUE(contains(outcome.message, "parameter ABCDE"));
    EXPECT_LT(outcome.message.size(), 300u);
  }
}

TEST(Agreement, ARankThatDoesNotComeIsNamedInTime) {
  const TimePoint began = Clock::now();
  const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
    if (transport->rank() != 2) agree(*transport, 0, "x", milliseconds(500));
  });
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  int timeouts = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(outcomes[rank].error == Errc::timeout || outcomes[rank].error == Errc::peer_lost);
    timeouts += outcomes[rank].error == Errc::timeout ? 1 : 0;
    EXPECT_TRUE(contains(outcomes[rank].message, "waiting for rank 2"));
    EXPECT_TRUE(contains(outcomes[rank].message, "500 ms"));
  }
  EXPECT_GE(timeouts, 1);
}

TEST(Agreement, ARankThatComesTooLateIsToldAndTouchesNoMemoryOfTheOthers) {
  // Under ASan: the frames of the ranks that gave up are gone when the late one posts.
  std::atomic<int> gave_up = 0;
  const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
    if (transport->rank() == 2) {
      while (gave_up < 2) std::this_thread::sleep_for(milliseconds(1));
      agree(*transport, 0, "x", kLong);
    } else {
      try {
        agree(*transport, 0, "x", milliseconds(50));
      } catch (const Error&) {
        ++gave_up;
      }
    }
  });
  EXPECT_EQ(outcomes[2].error, Errc::peer_lost);
  EXPECT_TRUE(contains(outcomes[2].message, "waiting for rank"));
}

TEST(Agreement, ADamagedGreetingIsRefused) {
  for (const std::size_t at : {0u, 8u, 14u, 15u, 16u, 24u, 44u, 48u, 56u}) {
    const auto outcomes =
        run_each(faulty(3,
                        [&](int rank) -> FaultyTransport::Script {
                          return [rank, at](const Message& message) {
                            Fault fault;
                            if (rank == 0 && message.peer == 1)
                              fault.change = [at](std::span<std::byte> frame) { frame[at] ^= std::byte{4}; };
                            return fault;
                          };
                        }),
                 [](const std::shared_ptr<Transport>& transport) { agree(*transport, 0, "x", milliseconds(2000)); });
    EXPECT_EQ(outcomes[1].error, Errc::corrupt) << "byte " << at;
    EXPECT_TRUE(contains(outcomes[1].message, "from rank 0"));
  }
}

TEST(Agreement, GatherValuesGivesEveryRankAllValues) {
  run_all(4, [](const std::shared_ptr<Transport>& transport) {
    for (std::uint64_t round = 0; round < 300; ++round) {  // more than there are channels
      const auto rank = static_cast<std::uint64_t>(transport->rank());
      const auto values = gather_values(*transport, round * 1000 + rank);
      ASSERT_EQ(values,
                (std::vector<std::uint64_t>{round * 1000, round * 1000 + 1, round * 1000 + 2, round * 1000 + 3}));
    }
  });
  run_all(1, [](const std::shared_ptr<Transport>& transport) {
    EXPECT_EQ(gather_values(*transport, 9), std::vector<std::uint64_t>{9});
    EXPECT_EQ(agree(*transport, 0, "x", kLong), fingerprint("x"));
  });
}

TEST(Agreement, ALimitThatClocksDoNotReachIsACentury) {
  const TimePoint now = Clock::now();
  EXPECT_EQ(deadline_after(milliseconds(5), now), now + milliseconds(5));
  EXPECT_EQ(deadline_after(milliseconds(-5), now), now);
  EXPECT_EQ(deadline_after(milliseconds::min(), now), now);
  EXPECT_EQ(deadline_after(milliseconds::max(), now), now + std::chrono::hours(24 * 36525));
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    if (transport->rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(gather_values(*transport, 7, milliseconds::max()), (std::vector<std::uint64_t>{7, 7, 7}));
    EXPECT_EQ(agree(*transport, transport->next_channel(), "x", milliseconds::max()), fingerprint("x"));
  });
}

TEST(Agreement, OneRankThatCannotDescribeIsNamedByAllOthersAtOnce) {
  const TimePoint began = Clock::now();
  const auto outcomes = run_each(local::make(3), [](const std::shared_ptr<Transport>& transport) {
    tightwire::agree_on(*transport, transport->next_channel(), kLong, [&]() -> std::string {
      if (transport->rank() == 1) throw Error(Errc::unsupported, "not here");
      return "a\nb\n";
    });
  });
  EXPECT_LT(Clock::now() - began, kLong);
  EXPECT_EQ(outcomes[1].error, Errc::unsupported);
  EXPECT_EQ(outcomes[1].message, "not here");
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(outcomes[rank].error, Errc::mismatch);
    EXPECT_TRUE(contains(outcomes[rank].message, "rank 1 has cannot plan: not here"));
  }
  // Where all say the same of it, each has its own error all the same.
  const auto all = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    tightwire::agree_on(*transport, transport->next_channel(), kLong,
                        []() -> std::string { throw Error(Errc::unsupported, "nowhere"); });
  });
  for (const Outcome& outcome : all) EXPECT_EQ(outcome.error, Errc::unsupported);
}

TEST(Agreement, OneRankThatCannotGatherIsNamedAndChannelsGoOnAlike) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    if (transport->rank() == 2)
      refuse_to_gather(*transport, kLong);
    else
      EXPECT_ERROR(gather_values(*transport, 1, kLong), Errc::mismatch, "rank 2 called it with arguments that");
    EXPECT_EQ(gather_values(*transport, 4, kLong), (std::vector<std::uint64_t>{4, 4, 4}));
  });
}

}  // namespace
}  // namespace tightwire::testing::agreement_test
