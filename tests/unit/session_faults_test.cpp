// Ranks that disagree, do not come, go away, and a network that damages, cuts and repeats: always an error that says who and
// what, never a hang, never a wrong result.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/host/builtin.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/steps.hpp"

namespace tightwire::testing {
namespace {

using std::chrono::milliseconds;

Model small_model() {
  return {{"first", {40, 30}, ElementType::f32, Int8{}},
          {"second", {1000}, ElementType::f32, Int4{}},
          {"third", {333}, ElementType::bf16, Codec{}}};
}
SessionOptions two_shot(milliseconds timeout = std::chrono::seconds(20)) {
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  options.timeout = timeout;
  return options;
}

// --- Ranks that disagree ---------------------------------------------------------------------------------------------

struct Disagreement {
  const char* what;
  std::function<void(Model&, SessionOptions&)> change;
  const char* here;   ///< what the ranks that agree have
  const char* there;  ///< what the odd one has
};

TEST(Disagreement, IsAnErrorOnEveryRankThatNamesBothValues) {
  const std::vector<Disagreement> cases = {
      {"count", [](Model& m, auto&) { m[1].shape = {998}; }, "\"second\" [1000]", "\"second\" [998]"},
      {"much larger", [](Model& m, auto&) { m[1].shape = {100'000}; }, "[1000]", "[100000]"},
      {"shape", [](Model& m, auto&) { m[0].shape = {30, 40}; }, "[40,30]", "[30,40]"},
      {"rank of shape", [](Model& m, auto&) { m[0].shape = {1200}; }, "[40,30]", "[1200]"},
      {"name", [](Model& m, auto&) { m[2].name = "3rd"; }, "\"third\"", "\"3rd\""},
      {"type", [](Model& m, auto&) { m[2].type = ElementType::f16; }, "bf16 exact", "fp16 exact"},
      {"codec", [](Model& m, auto&) { m[1].codec = Int8{}; }, "int4:block=64", "int8:block=256"},
      {"block", [](Model& m, auto&) { m[0].codec = Int8{.block = 128}; }, "block=256", "block=128"},
      {"order", [](Model& m, auto&) { std::swap(m[0], m[1]); }, "parameter 0 \"first\"", "parameter 0 \"second\""},
      {"one less", [](Model& m, auto&) { m.pop_back(); }, "parameter 2 \"third\"", "bucket 0 of parameters 0 1"},
      {"one more", [](Model& m, auto&) { m.push_back({"fourth", {5}, ElementType::f32, Codec{}}); }, "bucket 0",
       "parameter 3 \"fourth\" [5] fp32 exact"},
      {"none at all", [](Model& m, auto&) { m.clear(); }, "parameter 0 \"first\"", "nothing more"},
      {"operation", [](Model&, auto& o) { o.average = false; }, "operation mean", "operation sum"},
      {"feedback", [](Model&, auto& o) { o.error_feedback = false; }, "error feedback on", "error feedback off"},
      {"rollback", [](Model&, auto& o) { o.rollback = false; }, "rollback on", "rollback off"},
      {"policy", [](Model&, auto& o) { o.nonfinite = NonFinitePolicy::error; }, "policy propagate", "policy error"},
      {"algorithm", [](Model&, auto& o) { o.plan.algorithm = Algorithm::one_shot; }, "two_shot", "one_shot"},
      {"share", [](Model&, auto& o) { o.plan.share_elements = 1 << 17; }, "share 65536", "share 131072"},
      {"buckets", [](Model&, auto& o) { o.bucket_bytes = 6000; }, "bucket 0 of parameters 0 1 2:",
       "bucket 0 of parameters 0:"},
  };
  for (const Disagreement& c : cases)
    for (const int odd : {0, 2}) {
      SCOPED_TRACE(std::string(c.what) + " on rank " + std::to_string(odd));
      const TimePoint began = Clock::now();
      const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
        Model model = small_model();
        SessionOptions options = two_shot();
        if (transport->rank() == odd) c.change(model, options);
        const auto session = open_session(transport, model, options);
        try {
          session->seal();
        } catch (const Error& error) {
          EXPECT_ERROR(session->seal(), error.code(), error.what());  // closed: the same error from every later call
          EXPECT_ERROR(session->all_reduce(std::vector<void*>{}), error.code(), error.what());
          EXPECT_ERROR(session->commit(), error.code(), error.what());
          throw;
        }
      });
      EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.error, Errc::mismatch);
        EXPECT_TRUE(contains(outcome.message, c.here));
        EXPECT_TRUE(contains(outcome.message, c.there));
        EXPECT_TRUE(contains(outcome.message, "rank " + std::to_string(odd)));
      }
    }
}

TEST(Disagreement, TheTransportServesTheNextSessionThatAgrees) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    Model model = small_model();
    if (transport->rank() == 1) model[0].shape = {1};
    EXPECT_ERROR(sealed_session(transport, model), Errc::mismatch, "first");
    const auto session = sealed_session(transport, small_model());
    const Model right = small_model();
    Gradients gradients(right);
    gradients.fill_bell(1);
    session->all_reduce(gradients.pointers());
    EXPECT_TRUE(session->commit());
  });
}

// --- Ranks that do not come or go away -------------------------------------------------------------------------------

/// Every rank but `absent` fails by a timeout, or is told of another's; all texts contain these parts.
void expect_timeout(const std::vector<Outcome>& outcomes, std::size_t absent, const std::vector<std::string>& parts) {
  int timeouts = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (rank == absent) continue;
    ASSERT_TRUE(outcomes[rank].error == Errc::timeout || outcomes[rank].error == Errc::peer_lost) << outcomes[rank].message;
    timeouts += outcomes[rank].error == Errc::timeout ? 1 : 0;
    for (const std::string& part : parts) EXPECT_TRUE(contains(outcomes[rank].message, part));
  }
  EXPECT_GE(timeouts, 1);
}

TEST(Absence, ARankThatNeverSealsIsNamed) {
  const auto outcomes = run_each(local::make(3), [](const std::shared_ptr<Transport>& transport) {
    if (transport->rank() != 1) sealed_session(transport, small_model(), two_shot(milliseconds(150)));
  });
  expect_timeout(outcomes, 1, {"waiting for rank 1", "150 ms", "seal"});
}

TEST(Absence, ARankThatNeverStartsABucketIsNamedWithTheBucket) {
  const Model model = small_model();
  std::atomic<int> failed = 0;
  const TimePoint began = Clock::now();
  const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options = two_shot(milliseconds(200));
    options.bucket_bytes = 1;
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill_bell(1);
    std::vector<Handle> handles;
    for (const BucketId id : {2u, 1u, 0u}) {
      if (transport->rank() == 2 && id == 1) continue;
      void* pointer = gradients.pointers()[id];
      handles.push_back(session->start(id, {&pointer, 1}));
    }
    if (transport->rank() == 2) {
      handles[0].wait();
      handles[1].wait();
      while (failed < 2) std::this_thread::sleep_for(milliseconds(1));  // alive, but of no help
      return;
    }
    handles[0].wait();
    handles[2].wait();
    try {
      handles[1].wait();
    } catch (const Error&) {
      ++failed;
      throw;
    }
  });
  EXPECT_FALSE(outcomes[2].error);
  expect_timeout(outcomes, 2, {"bucket 1 (second)", "waiting for rank 2", "200 ms"});
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

/// Fails where memory is to be registered for the n-th time.
class FailingAttach final : public WrappingTransport {
 public:
  FailingAttach(std::shared_ptr<Transport> inner, int fails_at) : WrappingTransport(std::move(inner)), left_(fails_at) {}
  void attach(std::span<std::byte> memory) override {
    if (left_-- == 0) throw Error(Errc::no_memory, "cannot register " + std::to_string(memory.size()) + " bytes");
    WrappingTransport::attach(memory);
  }

 private:
  int left_;
};

TEST(Absence, ARankThatFailsInSealAfterAllAgreedTellsTheOthers) {
  const Model model = small_model();
  for (int at = 0; at < 3; ++at) {
    Transports transports = local::make(3);
    transports[1] = std::make_shared<FailingAttach>(transports[1], at);
    const auto outcomes = run_each(transports, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options = two_shot();
      options.bucket_bytes = 1;
      const auto session = open_session(transport, model, options);
      try {
        session->seal();
      } catch (const Error& error) {
        EXPECT_ERROR(session->seal(), error.code(), error.what());
        throw;
      }
      Gradients gradients(model);
      session->all_reduce(gradients.pointers());
    });
    EXPECT_EQ(outcomes[1].error, Errc::no_memory);
    for (const std::size_t rank : {0u, 2u}) {
      EXPECT_EQ(outcomes[rank].error, Errc::peer_lost);
      EXPECT_TRUE(contains(outcomes[rank].message, "rank 1 lost: cannot register"));
    }
  }
}

TEST(Absence, ARankThatThrowsGivesTheOthersItsReason) {
  const Model model = small_model();
  std::atomic<int> told = 0;
  EXPECT_THROW(local::run(3,
                          [&](const std::shared_ptr<Transport>& transport) {
                            const auto session = sealed_session(transport, model, two_shot());
                            Gradients gradients(model);
                            for (int step = 0; step < 5; ++step) {
                              gradients.fill_bell(1);
                              if (transport->rank() == 0 && step == 3) throw std::runtime_error("loss is not a number");
                              try {
                                session->all_reduce(gradients.pointers());
                              } catch (const Error& error) {
                                EXPECT_EQ(error.code(), Errc::peer_lost);
                                EXPECT_TRUE(contains(error.what(), "rank 0 lost: loss is not a number"));
                                EXPECT_GE(step, 2);  // rank 0 may have had all of step 2 before another rank had
                                ++told;
                                throw;
                              }
                              session->commit();
                            }
                          }),
               std::runtime_error);
  EXPECT_EQ(told, 2);
}

TEST(Absence, ASessionThatEndsWithReductionsUnderWayTellsTheOthersAndTouchesNothing) {
  // Under ASan: buffers, residuals and frames of rank 0 go away while rank 1 sends to it. Rank 2 comes when all is over, so
  // that bucket 1 cannot end before.
  const Model model = small_model();
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::atomic<bool> ended = false;
    const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options = two_shot();
      options.bucket_bytes = 1;
      auto gradients = std::make_unique<Gradients>(model);
      gradients->fill_bell(1);
      auto session = sealed_session(transport, model, options);
      const auto start = [&](BucketId id) {
        void* pointer = gradients->pointers()[id];
        return session->start(id, {&pointer, 1});
      };
      Handle first = start(0);
      if (transport->rank() == 2) {
        first.wait();
        while (!ended) std::this_thread::yield();
      }
      Handle second = start(1);
      if (transport->rank() != 0) {
        second.wait();
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20 * repetition));
      session.reset();
      gradients.reset();
      ended = true;
    });
    EXPECT_FALSE(outcomes[0].error) << outcomes[0].message;
    for (const std::size_t rank : {1u, 2u}) {
      EXPECT_EQ(outcomes[rank].error, Errc::peer_lost);
      EXPECT_TRUE(contains(outcomes[rank].message, "rank 0 lost: its Session ended with reductions under way"));
    }
  }
}

TEST(Absence, AFailureClosesTheSessionForGood) {
  const Model model = small_model();
  const auto outcomes = run_each(local::make(2), [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, two_shot(milliseconds(100)));
    if (transport->rank() == 1) {
      // Stays until rank 0 is done with its checks, which it says by closing.
      Gradients gradients(model);
      std::this_thread::sleep_for(milliseconds(400));
      session->all_reduce(gradients.pointers());
      return;
    }
    Gradients gradients(model);
    std::string first;
    try {
      session->all_reduce(gradients.pointers());
      ADD_FAILURE() << "no timeout";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::timeout);
      first = error.what();
    }
    void* pointer = gradients.pointers()[0];
    EXPECT_ERROR(session->all_reduce(gradients.pointers()), Errc::timeout, first);
    EXPECT_ERROR(session->start(0, {&pointer, 1}), Errc::timeout, first);
    EXPECT_ERROR(session->commit(), Errc::timeout, first);
    EXPECT_ERROR(session->rollback(), Errc::timeout, first);
  });
  EXPECT_FALSE(outcomes[0].error) << outcomes[0].message;
  EXPECT_EQ(outcomes[1].error, Errc::peer_lost);
  EXPECT_TRUE(contains(outcomes[1].message, "bucket 0 (first, ...) made no progress for 100 ms; waiting for rank 1"));
}

// --- A network that damages frames -----------------------------------------------------------------------------------

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
      return [this](const Message& message) {
        return message.peer == 1 && kind_of(message) == kind ? fault() : Fault{};
      };
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
    for (const std::size_t at : {0u, 8u, 12u, 14u, 15u, 16u, 23u, 24u, 32u, 36u, 40u, 44u, 48u, 56u, 64u, 80u, 200u, 335u}) {
      SCOPED_TRACE("byte " + std::to_string(at) + " of a " + (kind == FrameKind::result ? "result" : "contribution"));
      const FrameFault fault{kind, [at] {
                               return Fault{.change = [at](std::span<std::byte> frame) { frame[at] ^= std::byte{1}; }};
                             }};
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
      const auto session = sealed_session(transport, model, two_shot(milliseconds(transport->rank() == 1 ? 150 : 5000)));
      Gradients gradients(model);
      session->all_reduce(gradients.pointers());
    });
    EXPECT_EQ(outcomes[1].error, Errc::timeout);
    EXPECT_TRUE(contains(outcomes[1].message, "bucket 0 (w) made no progress for 150 ms; waiting for rank 0"));
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
      for (const float x : gradients.values(0)) ASSERT_NEAR(x, static_cast<float>(step), static_cast<float>(step) / 100);
      ++steps[static_cast<std::size_t>(transport->rank())];
    }
  });
  EXPECT_EQ(steps[1], 256);
  EXPECT_EQ(outcomes[1].error, Errc::corrupt);
  EXPECT_TRUE(contains(outcomes[1].message, "sequence number is 0, expected 256"));
  EXPECT_EQ(outcomes[0].error, Errc::peer_lost);
}

}  // namespace
}  // namespace tightwire::testing
