// What a caller can get wrong is refused by name, changes nothing, and the Session works on.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::session_misuse {
namespace {

Model two_parameters() {
  return {{"weight", {40, 50}, ElementType::f32, Int8{}}, {"bias", {50}, ElementType::f32, Codec{}}};
}
SessionOptions one_bucket_each() {
  SessionOptions options;
  options.bucket_bytes = 1;
  options.plan.algorithm = Algorithm::two_shot;
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// Two ranks, both misuse the Session in the same way; afterwards it must do a step as an untouched one does.
void misuse(const std::function<void(Session&, Gradients&)>& wrong, SessionOptions options = one_bucket_each()) {
  const Model model = two_parameters();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, options), clean = sealed_session(transport, model, options);
    const auto step = [&](Session& which) {
      Gradients gradients(model);
      gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
      which.all_reduce(gradients.pointers());
      which.commit();
      return gradients.bytes();
    };
    EXPECT_TRUE(step(*session) == step(*clean));
    Gradients gradients(model), before(model);
    for (Gradients* each : {&gradients, &before}) each->fill_bell(99);
    wrong(*session, gradients);
    EXPECT_TRUE(gradients.bytes() == before.bytes()) << "nothing was started";
    EXPECT_TRUE(step(*session) == step(*clean));
    EXPECT_EQ(session->steps(), 2u);
  });
}

std::vector<void*> copy(std::span<void* const> pointers) { return {pointers.begin(), pointers.end()}; }

TEST(Misuse, NullPointer) {
  misuse([](Session& session, Gradients& gradients) {
    std::vector<void*> pointers = copy(gradients.pointers());
    pointers[1] = nullptr;  // of the second bucket: the first must not have been started
    EXPECT_ERROR(session.all_reduce(pointers), Errc::invalid_argument, "all_reduce: the pointer for \"bias\" is null");
    void* null = nullptr;
    EXPECT_ERROR(session.start(0, {&null, 1}), Errc::invalid_argument, "start: the pointer for \"weight\" is null");
  });
}

TEST(Misuse, WrongNumberOfPointers) {
  misuse([](Session& session, Gradients& gradients) {
    std::vector<void*> pointers = copy(gradients.pointers());
    pointers.pop_back();
    EXPECT_ERROR(session.all_reduce(pointers), Errc::invalid_argument, "got 1 pointers for 2 parameters");
    EXPECT_ERROR(session.all_reduce(std::vector<void*>{}), Errc::invalid_argument, "got 0 pointers for 2 parameters");
    EXPECT_ERROR(session.start(0, gradients.pointers()), Errc::invalid_argument, "got 2 pointers for the 1 parameters");
    EXPECT_ERROR(session.start(1, {}), Errc::invalid_argument, "bucket 1 (bias)");
  });
}

TEST(Misuse, UnknownBucketOrParameter) {
  misuse([](Session& session, Gradients& gradients) {
    EXPECT_ERROR(session.start(2, gradients.pointers()), Errc::invalid_argument, "there is no bucket 2");
    EXPECT_ERROR(session.start(static_cast<BucketId>(-1), {}), Errc::invalid_argument, "there is no bucket 1844");
    EXPECT_ERROR(session.bucket_plan(2), Errc::invalid_argument, "there is no bucket 2");
    EXPECT_ERROR(session.bucket_statistics(3), Errc::invalid_argument, "there is no bucket 3");
    EXPECT_ERROR(session.bucket_parameters(4), Errc::invalid_argument, "there is no bucket 4");
    EXPECT_ERROR(session.owner_residual(5), Errc::invalid_argument, "there is no bucket 5");
    EXPECT_ERROR(session.sender_residual(2), Errc::invalid_argument, "there is no parameter 2");
  });
}

TEST(Misuse, FlatGradientOfWrongSize) {
  misuse([](Session& session, Gradients&) {
    std::vector<float> flat(2049);
    EXPECT_ERROR(session.all_reduce(flat), Errc::invalid_argument, "got 2049 elements for parameters of 2050");
    flat.resize(2051);
    EXPECT_ERROR(session.all_reduce(flat), Errc::invalid_argument, "got 2051 elements for parameters of 2050");
    EXPECT_ERROR(session.all_reduce(std::span<float>{}), Errc::invalid_argument, "got 0 elements");
  });
}

TEST(Misuse, ChangesAfterSeal) {
  misuse([](Session& session, Gradients&) {
    EXPECT_ERROR(session.add("late", {3}), Errc::invalid_argument, "add: the Session is sealed");
    EXPECT_ERROR(session.add_bucket(std::vector<ParameterId>{0}), Errc::invalid_argument, "add_bucket: the Session");
    EXPECT_ERROR(session.seal(), Errc::invalid_argument, "seal: the Session is sealed");
    EXPECT_EQ(session.parameters().size(), 2u);
    EXPECT_EQ(session.buckets(), 2u);
  });
}

TEST(Misuse, WhileAReductionIsUnderWay) {
  const Model model = two_parameters();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, one_bucket_each());
    const auto clean = sealed_session(transport, model, one_bucket_each());
    Gradients gradients(model), other(model), expected(model);
    for (int step = 0; step < 20; ++step) {
      for (Gradients* each : {&gradients, &expected})
        each->fill_bell(static_cast<std::uint64_t>(10 * step + transport->rank()));
      void* pointer = gradients.pointers()[0];
      Handle handle = session->start(0, {&pointer, 1});
      // Whether it is done by now or not: it was not waited for.
      void* elsewhere = other.pointers()[0];
      EXPECT_ERROR(session->start(0, {&elsewhere, 1}), Errc::invalid_argument, "bucket 0 (weight) is under way");
      EXPECT_ERROR(session->all_reduce(other.pointers()), Errc::invalid_argument, "bucket 0 (weight) is under way");
      EXPECT_ERROR(session->commit(), Errc::invalid_argument,
                   "commit: bucket 0 (weight) was started and not waited for");
      EXPECT_ERROR(session->rollback(), Errc::invalid_argument, "rollback: bucket 0 (weight) was started");
      handle.wait();
      handle.wait();  // again is harmless
      Handle second = session->start(1, {gradients.pointers().data() + 1, 1});
      handle.wait();  // and does not touch what came later
      EXPECT_ERROR(session->commit(), Errc::invalid_argument, "bucket 1 (bias)");
      second.wait();
      session->commit();
      handle.wait();
      clean->all_reduce(expected.pointers());
      clean->commit();
      ASSERT_TRUE(gradients.bytes() == expected.bytes()) << "step " << step;
      EXPECT_EQ(session->last_step().calls, 2u) << "waiting twice counts once";
    }
  });
}

TEST(Misuse, AnOldHandleDoesNotWaitForANewReduction) {
  const Model model = two_parameters();
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    const auto session = sealed_session(transport, model, one_bucket_each());
    Gradients gradients(model);
    void* pointer = gradients.pointers()[0];
    Handle old = session->start(0, {&pointer, 1});
    old.wait();
    Handle now = session->start(0, {&pointer, 1});
    old.wait();
    EXPECT_ERROR(session->commit(), Errc::invalid_argument, "was started and not waited for");
    now.wait();
    session->commit();
  });
}

TEST(Misuse, BeforeSeal) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    const Model model = two_parameters();
    const auto session = open_session(transport, model, one_bucket_each());
    Gradients gradients(model);
    std::vector<float> flat(2050);
    EXPECT_ERROR(session->all_reduce(gradients.pointers()), Errc::invalid_argument, "call seal() first");
    EXPECT_ERROR(session->all_reduce(flat), Errc::invalid_argument, "call seal() first");
    EXPECT_ERROR(session->start(0, gradients.pointers()), Errc::invalid_argument, "call seal() first");
    EXPECT_ERROR(session->commit(), Errc::invalid_argument, "commit: call seal() first");
    EXPECT_ERROR(session->rollback(), Errc::invalid_argument, "rollback: call seal() first");
    EXPECT_TRUE(session->sender_residual(0).empty());
    session->seal();
    session->all_reduce(gradients.pointers());
    EXPECT_TRUE(session->commit());
  });
}

TEST(Misuse, Parameters) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    Session session(transport, one_bucket_each());
    EXPECT_EQ(session.add("weight", {4, 0}), 0u);
    EXPECT_ERROR(session.add("weight", {5}), Errc::invalid_argument, "\"weight\" was added before");
    EXPECT_ERROR(session.add("negative", {4, -1}), Errc::invalid_argument, "\"negative\" has dimension -1");
    EXPECT_ERROR(session.add("huge", {std::int64_t{1} << 40, std::int64_t{1} << 40}), Errc::invalid_argument,
                 "\"huge\"");
    EXPECT_ERROR(session.add("wraps", {std::int64_t{1} << 32, std::int64_t{1} << 32, 3}), Errc::invalid_argument,
                 "\"wraps\"");
    EXPECT_EQ(session.parameters().size(), 1u) << "what was refused left nothing behind";
    EXPECT_EQ(session.add("negative", {4, 1}), 1u);
    session.seal();
    float x[4] = {1, 2, 3, 4};
    void* pointers[] = {nullptr, x};  // no elements, no pointer needed
    session.all_reduce(pointers);
    EXPECT_TRUE(session.commit());
    EXPECT_EQ(x[3], 4.0f);
  });
}

TEST(Misuse, Buckets) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    Session session(transport, one_bucket_each());
    for (const char* name : {"a", "b", "c", "d"}) session.add(name, {100});
    using Ids = std::vector<ParameterId>;
    EXPECT_ERROR(session.add_bucket(Ids{}), Errc::invalid_argument, "no parameters");
    EXPECT_ERROR(session.add_bucket(Ids{2, 4}), Errc::invalid_argument, "there is no parameter 4");
    EXPECT_ERROR(session.add_bucket(Ids{2, 1, 2}), Errc::invalid_argument, "\"c\" is in a bucket already");
    EXPECT_EQ(session.add_bucket(Ids{2, 0}), 0u) << "what was refused holds no parameter back";
    EXPECT_ERROR(session.add_bucket(Ids{1, 0}), Errc::invalid_argument, "\"a\" is in a bucket already");
    session.seal();
    EXPECT_EQ(session.buckets(), 3u);
    std::vector<std::vector<float>> x(4, std::vector<float>(100, static_cast<float>(transport->rank())));
    void* pointers[] = {x[0].data(), x[1].data(), x[2].data(), x[3].data()};
    session.all_reduce(pointers);
    for (const auto& each : x) EXPECT_EQ(each[99], 0.5f) << "every parameter was reduced";
  });
}

TEST(Misuse, FlatGradientOfAnotherType) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    const Model model = {{"w", {4}, ElementType::f32, Codec{}}, {"h", {4}, ElementType::bf16, Codec{}}};
    const auto session = sealed_session(transport, model);
    std::vector<float> flat(8);
    EXPECT_ERROR(session->all_reduce(flat), Errc::invalid_argument, "\"h\" is bf16, not fp32");
    Gradients gradients(model);
    session->all_reduce(gradients.pointers());
    EXPECT_TRUE(session->commit());
  });
}

TEST(Misuse, NoTransport) { EXPECT_ERROR(Session(nullptr), Errc::invalid_argument, "transport is null"); }

TEST(Use, FlatGradientEqualsPointers) {
  const Model model = two_parameters();
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto a = sealed_session(transport, model, one_bucket_each()),
               b = sealed_session(transport, model, one_bucket_each());
    Gradients gradients(model);
    gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()));
    std::vector<float> flat = gradients.values(0);
    const std::vector<float> bias = gradients.values(1);
    flat.insert(flat.end(), bias.begin(), bias.end());
    a->all_reduce(gradients.pointers());
    b->all_reduce(flat);
    for (std::size_t i = 0; i < 2000; ++i) ASSERT_EQ(flat[i], gradients.get(0, i));
    for (std::size_t i = 0; i < 50; ++i) ASSERT_EQ(flat[2000 + i], gradients.get(1, i));
  });
}

TEST(Use, NothingAtAll) {
  run_all(3, [](const std::shared_ptr<Transport>& transport) {
    Session session(transport);
    session.seal();
    session.all_reduce(std::vector<void*>{});
    session.all_reduce(std::span<float>{});
    EXPECT_TRUE(session.commit());
    EXPECT_EQ(session.buckets(), 0u);
  });
}

TEST(Use, ABucketWithoutElementsEndsAtOnce) {
  // No message will ever wake the one who waits for it: neither alone nor next to one with elements.
  const Model empty = {{"none", {0, 5}, ElementType::f32, Int8{}}};
  Model mixed = empty;
  mixed.push_back({"some", {500}, ElementType::f32, Int8{}});
  run_all(3, [&](const std::shared_ptr<Transport>& transport) {
    const auto alone = sealed_session(transport, empty, one_bucket_each());
    const auto session = open_session(transport, mixed, one_bucket_each());
    for (const ParameterId id : {0u, 1u}) session->add_bucket(std::vector<ParameterId>{id});
    session->seal();
    const TimePoint began = Clock::now();
    void* none = nullptr;
    for (int step = 0; step < 5; ++step) {
      alone->all_reduce({&none, 1});
      EXPECT_TRUE(alone->commit());
    }
    for (int step = 0; step < 5; ++step) {
      session->start(0, {&none, 1}).wait();
      Gradients gradients(mixed);
      session->all_reduce(gradients.pointers());
      EXPECT_TRUE(session->commit());
    }
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  });
}

TEST(Misuse, ATimeoutThatIsNone) {
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    for (const int limit : {0, -1}) {
      SessionOptions options;
      options.timeout = std::chrono::milliseconds(limit);
      EXPECT_ERROR(Session(transport, options), Errc::invalid_argument,
                   "Session: timeout is " + std::to_string(limit) + " ms, and must be above 0");
    }
    SessionOptions options;
    options.timeout = std::chrono::milliseconds::max();
    Session session(transport, options);
    session.add("w", {64, 64});
    session.seal();
    std::vector<float> gradient(64 * 64, 1.0f);
    if (transport->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    session.all_reduce(gradient);
    EXPECT_TRUE(session.commit());
  });
}

}  // namespace
}  // namespace tightwire::testing::session_misuse
