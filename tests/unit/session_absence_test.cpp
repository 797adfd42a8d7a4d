// Ranks that do not come or go away: an error in time that says who and why, and nothing touched afterwards.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"
#include "support/small_model.hpp"

namespace tightwire::testing::session_absence {
namespace {

using std::chrono::milliseconds;

/// Every rank but `absent` fails by a timeout, or is told of another's; all texts contain these parts.
void expect_timeout(const std::vector<Outcome>& outcomes, std::size_t absent, const std::vector<std::string>& parts) {
  int timeouts = 0;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (rank == absent) continue;
    ASSERT_TRUE(outcomes[rank].error == Errc::timeout || outcomes[rank].error == Errc::peer_lost)
        << outcomes[rank].message;
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
    SessionOptions options = two_shot(milliseconds(800));
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
  expect_timeout(outcomes, 2, {"bucket 1 (second)", "waiting for rank 2", "800 ms"});
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
}

/// Fails where memory is to be registered for the n-th time.
class FailingAttach final : public WrappingTransport {
 public:
  FailingAttach(std::shared_ptr<Transport> inner, int fails_at)
      : WrappingTransport(std::move(inner)), left_(fails_at) {}
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
  // Under ASan: buffers, residuals and frames of rank 0 go away while rank 1 sends to it. Rank 2 comes when all is
  // over, so that bucket 1 cannot end before.
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
  std::atomic<bool> checked = false;
  const auto outcomes = run_each(local::make(2), [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, two_shot(milliseconds(400)));
    if (transport->rank() == 1) {
      Gradients gradients(model);
      while (!checked) std::this_thread::sleep_for(milliseconds(1));
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
    checked = true;
  });
  EXPECT_FALSE(outcomes[0].error) << outcomes[0].message;
  EXPECT_EQ(outcomes[1].error, Errc::peer_lost);
  EXPECT_TRUE(contains(outcomes[1].message, "bucket 0 (first, ...) made no progress for 400 ms; waiting for rank 1"));
}

}  // namespace
}  // namespace tightwire::testing::session_absence
