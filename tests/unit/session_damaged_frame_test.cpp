// A network that damages, cuts, loses and repeats frames: an error before anything wrong is used.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/small_model.hpp"

namespace tightwire::testing::session_damaged_frame {
namespace {

using std::chrono::milliseconds;

/// One reduction of one parameter on 3 ranks in which the frames of a kind from rank 0 to rank 1 suffer a fault.
struct FrameFault {
  FrameKind kind;
  std::function<Fault()> fault;

  struct Result {
    std::vector<Outcome> outcomes;
    bool victim_untouched;  ///< the share that the damaged frame was about is as before on rank 1
  };

  Result run() const {
    const Model model = {{"w", {3 * 256}, ElementType::f32, Int8{}}};
    const auto script = [this](int rank) -> FaultyTransport::Script {
      if (rank != 0) return {};
      return
          [this](const Message& message) { return message.peer == 1 && kind_of(message) == kind ? fault() : Fault{}; };
    };
    Result result;
    result.victim_untouched = true;
    result.outcomes = run_each(faulty(3, script), [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, two_shot(milliseconds(3000)));
      Gradients gradients(model), before(model);
      for (Gradients* each : {&gradients, &before}) each->fill_bell(static_cast<std::uint64_t>(transport->rank()));
      try {
        session->all_reduce(gradients.pointers());
      } catch (const Error&) {
        // A contribution of rank 0 is about the share rank 1 owns, a result about the one rank 0 owns.
        const std::size_t share = kind == FrameKind::contribution ? 1 : 0;
        if (transport->rank() == 1)
          for (std::size_t i = 256 * share; i < 256 * (share + 1); ++i)
            result.victim_untouched = result.victim_untouched && gradients.get(0, i) == before.get(0, i);
        throw;
      }
    });
    return result;
  }

  static FrameKind kind_of(const Message& message) { return static_cast<FrameKind>(message.tag >> 38 & 3); }
};

TEST(DamagedFrame, IsRefusedBeforeAnythingInItIsUsed) {
  // One bit in every field of the header, and at both ends and in the middle of the payload.
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::size_t at :
         {0u, 8u, 12u, 14u, 15u, 16u, 23u, 24u, 32u, 36u, 40u, 44u, 48u, 56u, 64u, 80u, 200u, 335u}) {
      SCOPED_TRACE("byte " + std::to_string(at) + " of a " + (kind == FrameKind::result ? "result" : "contribution"));
      const FrameFault fault{
          kind, [at] { return Fault{.change = [at](std::span<std::byte> frame) { frame[at] ^= std::byte{1}; }}; }};
      const auto [outcomes, untouched] = fault.run();
      EXPECT_EQ(outcomes[1].error, at == 12 ? Errc::mismatch : Errc::corrupt);
      EXPECT_TRUE(contains(outcomes[1].message, "frame from rank 0"));
      EXPECT_TRUE(untouched);
      for (const std::size_t rank : {0u, 2u})
        if (outcomes[rank].error) {  // a rank that had all it needed by then may have ended well
          EXPECT_EQ(outcomes[rank].error, Errc::peer_lost);
          EXPECT_TRUE(contains(outcomes[rank].message, "rank 1 lost: frame from rank 0"));
        }
    }
}

TEST(DamagedFrame, OneThatIsSoundButNotOursIsRefusedToo) {
  struct Case {
    const char* text;
    Errc code;
    std::function<void(FrameHeader&)> edit;
  };
  for (const Case& c : {Case{"another plan", Errc::mismatch, [](FrameHeader& h) { h.fingerprint += 1; }},
                        Case{"every rank must commit", Errc::mismatch, [](FrameHeader& h) { h.step += 1; }},
                        Case{"bucket is 7", Errc::corrupt, [](FrameHeader& h) { h.bucket = 7; }},
                        Case{"sequence number is 256", Errc::corrupt, [](FrameHeader& h) { h.sequence = 256; }},
                        Case{"sender is 2", Errc::corrupt, [](FrameHeader& h) { h.sender = 2; }}})
    for (const FrameKind kind : {FrameKind::contribution, FrameKind::result}) {
      const FrameFault fault{kind, [&c] {
                               return Fault{.change = [&c](std::span<std::byte> frame) {
                                 FrameHeader header;
                                 std::memcpy(&header, frame.data(), sizeof header);
                                 c.edit(header);
                                 std::memcpy(frame.data(), &header, sizeof header);
                                 FaultyTransport::reseal(frame);
                               }};
                             }};
      const auto [outcomes, untouched] = fault.run();
      EXPECT_EQ(outcomes[1].error, c.code) << c.text;
      EXPECT_TRUE(contains(outcomes[1].message, c.text));
      EXPECT_TRUE(untouched);
    }
}

TEST(DamagedFrame, ARankThatHoldsAnotherFactorOfPowerSgdIsNamedBeforeItIsUsed) {
  // One bit of the mean of a factor, which no checksum tells: the left one is found out by frames of the right one, and
  // that by frames of the next step.
  for (const int which : {0, 1}) {
    const Model model = {{"w", {60, 40}, ElementType::f32, PowerSgd{.rank = 2}}};
    int ended = 0;
    const auto script = [&](int rank) -> FaultyTransport::Script {
      if (rank != 0) return {};
      return [which, results = 0](const Message& message) mutable {
        if (message.peer != 1 || FrameFault::kind_of(message) != FrameKind::result || results++ != which)
          return Fault{};
        return Fault{.change = [](std::span<std::byte> frame) {
          frame[sizeof(FrameHeader) + 5] ^= std::byte{1};
          FaultyTransport::reseal(frame);
        }};
      };
    };
    const auto outcomes = run_each(faulty(3, script), [&](const std::shared_ptr<Transport>& transport) {
      const auto session = sealed_session(transport, model, two_shot(milliseconds(3000)));
      Gradients gradients(model);
      for (std::uint64_t step = 0; step < 3; ++step) {
        gradients.fill_bell(3 * step + static_cast<std::uint64_t>(transport->rank()));
        session->all_reduce(gradients.pointers());
        session->commit();
        if (transport->rank() == 0) ++ended;
      }
    });
    EXPECT_EQ(ended, which);
    std::size_t found = 0;
    for (const std::size_t rank : {0u, 1u, 2u}) {
      ASSERT_TRUE(outcomes[rank].error.has_value()) << rank;
      if (outcomes[rank].error == Errc::mismatch) {
        ++found;
        EXPECT_TRUE(contains(outcomes[rank].message, "other factors of PowerSGD")) << outcomes[rank].message;
      }
    }
    EXPECT_GE(found, 1u);
  }
}

TEST(DamagedFrame, AnotherLengthIsAnErrorOnBothSides) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::size_t bytes : {0u, 63u, 64u, 335u, 337u, 4096u}) {
      const FrameFault fault{kind, [bytes] { return Fault{.resize = bytes}; }};
      const auto [outcomes, untouched] = fault.run();
      for (const std::size_t rank : {0u, 1u}) {
        ASSERT_TRUE(outcomes[rank].error == Errc::corrupt || outcomes[rank].error == Errc::peer_lost) << bytes;
        EXPECT_TRUE(contains(outcomes[rank].message, "expected 336 bytes, got " + std::to_string(bytes)));
      }
      EXPECT_TRUE(untouched);
    }
}

TEST(DamagedFrame, OneThatIsLostIsATimeoutThatNamesItsSender) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result}) {
    const Model model = {{"w", {3 * 256}, ElementType::f32, Int8{}}};
    const auto transports = faulty(3, [&](int rank) -> FaultyTransport::Script {
      if (rank != 0) return {};
      return [&](const Message& message) {
        return message.peer == 1 && FrameFault::kind_of(message) == kind ? Fault{.drop = true} : Fault{};
      };
    });
    const auto outcomes = run_each(transports, [&](const std::shared_ptr<Transport>& transport) {
      const auto session =
          sealed_session(transport, model, two_shot(milliseconds(transport->rank() == 1 ? 500 : 5000)));
      Gradients gradients(model);
      session->all_reduce(gradients.pointers());
    });
    EXPECT_EQ(outcomes[1].error, Errc::timeout);
    EXPECT_TRUE(contains(outcomes[1].message, "bucket 0 (w) made no progress for 500 ms; waiting for rank 0"));
  }
}

TEST(DamagedFrame, OneThatComesTwiceIsRefusedWhenItsTurnWouldCome) {
  // Tags repeat after 256 reductions; the second copy of the first frame then meets the receive of another.
  const Model model = {{"w", {64}, ElementType::f32, Int8{.block = 64}}};
  std::vector<int> steps(2);
  const auto transports = faulty(2, [](int rank) -> FaultyTransport::Script {
    auto first = std::make_shared<bool>(rank == 0);
    return [first](const Message& message) {
      const bool hit = *first && FrameFault::kind_of(message) == FrameKind::contribution;
      if (hit) *first = false;
      return Fault{.copies = hit ? 2 : 1};
    };
  });
  const auto outcomes = run_each(transports, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = two_shot();
    options.plan.algorithm = Algorithm::one_shot;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    for (int step = 0; step < 300; ++step) {
      gradients.fill([&](std::size_t, std::size_t) { return static_cast<float>(step); });
      session->all_reduce(gradients.pointers());
      for (const float x : gradients.values(0))
        ASSERT_NEAR(x, static_cast<float>(step), static_cast<float>(step) / 100);
      ++steps[static_cast<std::size_t>(transport->rank())];
    }
  });
  EXPECT_EQ(steps[1], 256);
  EXPECT_EQ(outcomes[1].error, Errc::corrupt);
  EXPECT_TRUE(contains(outcomes[1].message, "sequence number is 0, expected 256"));
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost);
}

}  // namespace
}  // namespace tightwire::testing::session_damaged_frame
