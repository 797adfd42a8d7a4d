// codec=auto: the same on ranks that measure otherwise, exact where compression does not pay, and ranks that were not
// all asked for it are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/session.hpp>

#include "support/ranks.hpp"
#include "support/wrapping_transport.hpp"

namespace tightwire::testing::session_automatic_codec {
namespace {

/// A link of some rate: a round is done no sooner than its bytes would have been there, one message after the other.
class SlowTransport final : public WrappingTransport {
 public:
  SlowTransport(std::shared_ptr<Transport> inner, double bytes_per_second)
      : WrappingTransport(std::move(inner)), seconds_per_byte_(1 / bytes_per_second) {}
  Ticket post(std::span<const Message> round) override {
    double bytes = 0;
    for (const Message& message : round)
      if (message.kind == Message::Kind::send) bytes += static_cast<double>(message.bytes);
    const auto delay =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bytes * seconds_per_byte_));
    free_ = std::max(free_, Clock::now()) + delay;
    std::this_thread::sleep_until(free_);
    return WrappingTransport::post(round);
  }

 private:
  double seconds_per_byte_;
  TimePoint free_{};
};

std::vector<std::string> descriptions(const Transports& transports, std::int64_t rows) {
  std::vector<std::string> descriptions(transports.size());
  run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
    Session session(transport, {.codec = Auto{}});
    session.add("matrix", {rows, 1024});
    session.seal();
    EXPECT_FALSE(session.options().codec.automatic());
    std::vector<float> gradient(static_cast<std::size_t>(rows) * 1024, 1.0f);
    session.all_reduce(gradient);
    EXPECT_TRUE(session.commit());
    EXPECT_EQ(gradient.back(), 1.0f);
    descriptions[static_cast<std::size_t>(transport->rank())] = session.description();
  });
  return descriptions;
}

TEST(AutomaticCodec, TakesLessBytesOnASlowLinkAndTheSameOnRanksThatMeasureOtherwise) {
  Transports transports;
  double rate = 4e6;  // so slow that codecs pay under a sanitizer too
  for (auto& inner : local::make(2)) transports.push_back(std::make_shared<SlowTransport>(inner, rate *= 2));
  const auto all = descriptions(transports, 512);
  EXPECT_EQ(all[0], all[1]);
  EXPECT_TRUE(contains(all[0], "int4") || contains(all[0], "int8")) << all[0];  // between these two noise may decide
}

TEST(AutomaticCodec, StaysExactWhereThereIsLittleToGain) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer slows copies down and vector loops hardly: there is something to gain";
#endif
  int exact = 0;
  for (int turn = 0; turn < 5; ++turn) {  // a core that is taken away amid a measurement may decide one or two of them
    const auto all = descriptions(local::make(2), 2);
    EXPECT_EQ(all[0], all[1]);
    exact += contains(all[0], "exact") ? 1 : 0;
  }
  EXPECT_GE(exact, 3);
}

TEST(AutomaticCodec, OneRankAloneIsExact) { EXPECT_TRUE(contains(descriptions(local::make(1), 64)[0], "exact")); }

TEST(AutomaticCodec, GainsMustBeWorthIt) {
  using detail::choose_by_time;
  EXPECT_EQ(choose_by_time({1.0, 0.95, 0.91, 0.92}), 0u);
  EXPECT_EQ(choose_by_time({1.0, 0.8, 0.75, 0.7}), 3u);
  EXPECT_EQ(choose_by_time({1.0, 0.5, 0.49, 0.48}), 1u);
  EXPECT_EQ(choose_by_time({50e-6, 31e-6, 31e-6, 31e-6}), 0u);  // a microsecond here or there
}

TEST(AutomaticCodec, ARankThatWasGivenACodecIsFound) {
  const auto outcomes = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    SessionOptions options;
    if (transport->rank() == 1) options.codec = Auto{};
    Session session(transport, options);
    session.add("matrix", {64, 64});
    session.seal();
  });
  expect_everywhere(outcomes, Errc::mismatch, "rank 1 has codec auto");
}

TEST(AutomaticCodec, ARuleCannotAskForIt) {
  SessionOptions options;
  options.policy.rules = {{.name = "matrix", .codec = Auto{}}};
  Session session(local::make(1).front(), options);
  session.add("matrix", {64, 64});
  EXPECT_ERROR(session.seal(), Errc::unsupported, "SessionOptions::codec");
}

TEST(AutomaticCodec, AnObserverWatchesTheSessionAndNotItsMeasurements) {
  class Counter final : public Observer {
   public:
    void sealed(const Session& session, const std::shared_ptr<Transport>&) override { told.push_back(&session); }
    std::vector<const Session*> told;
  };
  run_all(2, [](const std::shared_ptr<Transport>& transport) {
    const auto counter = std::make_shared<Counter>();
    Session session(transport, {.codec = Auto{}, .observer = counter});
    session.add("matrix", {64, 64});
    session.seal();
    EXPECT_EQ(counter->told, std::vector<const Session*>{&session});
  });
}

/// Where every kind of codec that the candidates are not has something to do.
TEST(AutomaticCodec, MeasuresWhatRulesTypesAndNodesAskForToo) {
  run_all(4, [](const std::shared_ptr<Transport>& transport) {
    SessionOptions options{.codec = Auto{}};
    options.policy.rules = {{.name = "blocks", .codec = parse_codec("int8:block=64")},
                            {.name = "chosen", .codec = parse_codec("topk:ratio=0.1+int7")},
                            {.name = "drawn", .codec = parse_codec("randomk:ratio=0.1+int6")},
                            {.name = "factors", .codec = parse_codec("powersgd:rank=2+fp8-e4m3")}};
    options.hierarchy = Hierarchy::of_equal_nodes(4, 2, parse_codec("int5"));
    Session session(transport, options);
    for (const char* name : {"blocks", "chosen", "drawn", "factors", "other"}) session.add(name, {99, 101});
    session.add("half", {64, 64}, ElementType::f16);
    session.add("brain", {64, 64}, ElementType::bf16);
    session.seal();
    EXPECT_FALSE(session.options().codec.automatic());
  });
}

TEST(AutomaticCodec, BucketsThatWereDeclaredArePredictedAndCompared) {
  ParameterList list("", 2);
  list.add({.name = "a", .shape = {64, 64}});
  list.add({.name = "b", .shape = {32, 32}});
  list.add({.name = "c", .shape = {64, 64}});
  list.add_bucket(std::vector<ParameterId>{2});
  const auto loads = simulate({.codec = Codec{}}, list.parameters(), 2, 1, 0, list.declared());
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].front().bucket_bytes, 4.0 * 64 * 64);
  EXPECT_EQ(loads[1].front().bucket_bytes, 4.0 * (64 * 64 + 32 * 32));

  const auto outcomes = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    Session session(transport, {.codec = Auto{}});
    session.add("a", {64, 64});
    session.add("b", {64, 64});
    if (transport->rank() == 1) session.add_bucket(std::vector<ParameterId>{1});
    session.seal();
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error);
    EXPECT_TRUE(contains(outcome.message, "rank 1 has bucket of parameters 1"));
  }
}

/// Noise in a candidate's measurement makes only those buckets faster that it is in.
TEST(AutomaticCodec, ScalesOnlyBucketsThatTheCandidateIsIn) {
  const std::vector<Parameter> parameters = {{.name = "norms", .shape = {1 << 20}},
                                             {.name = "small", .shape = {64, 64}}};
  const LinkCost link{20e-6, 1e-6, 1e9, 0.5};
  const Cluster cluster{2, 1, link, link};
  CodecCosts costs;
  for (const char* codec : {"exact", "int4"})
    costs.add(detail::cost_name(parse_codec(codec)), 1e6, {1e-10, 1e-10, 1e-10});
  const std::map<std::string, double> scales = {{"dense:block=256", 1.0}, {"int4:block=64", 0.5}};
  std::vector<double> seconds;
  for (const char* codec : {"exact", "int4"}) {
    const auto loads = simulate({.codec = parse_codec(codec), .bucket_bytes = 1}, parameters, 2, 1);
    seconds.push_back(detail::predicted_seconds(loads, scales, cluster, costs));
  }
  EXPECT_EQ(detail::choose_by_time(seconds), 0u) << seconds[0] << " " << seconds[1];
  EXPECT_LT(seconds[1], seconds[0]);  // by what the small one gains
}

TEST(AutomaticCodec, IsReadFromText) {
  EXPECT_TRUE(parse_codec("auto").automatic());
  EXPECT_EQ(parse_codec("auto").spec(), "auto");
  EXPECT_ERROR(parse_codec("auto:fast"), Errc::invalid_argument, "auto:fast");
}

TEST(Calibration, MessagesOfTheLinksMeasurementFitItsMemory) {
  for (int ranks = 2; ranks <= 16384; ranks += ranks < 100 ? 1 : ranks) {
    const std::vector<std::size_t> sizes = detail::message_sizes(ranks);
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end())) << ranks;
    EXPECT_GE(sizes.back(), 4096u);
    EXPECT_LE(2 * static_cast<std::size_t>(ranks) * sizes.back(), std::size_t{128} << 20) << ranks;
  }
  EXPECT_EQ(detail::message_sizes(2).back(), std::size_t{4} << 20);
  EXPECT_EQ(detail::message_sizes(16384), std::vector<std::size_t>{4096});
}

TEST(Calibration, TellsCostsOfEveryCodecAndExplainsItsTrials) {
  std::vector<Calibration> all(2);
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    all[static_cast<std::size_t>(transport->rank())] = calibrate<Session>(
        transport, {}, {Codec{}, Int8{}, TopK{}, PowerSgd{}}, {1 << 16, 1 << 20}, 1.0, {.number = 2});
  });
  const Calibration& one = all[0];
  EXPECT_EQ(one.link.bytes_per_second, all[1].link.bytes_per_second);
  EXPECT_GT(one.link.bytes_per_second, 0);
  EXPECT_GT(one.link.latency_seconds, 0);
  ASSERT_EQ(one.trials.size(), 8u);
  for (std::size_t i = 0; i < one.trials.size(); ++i) {
    EXPECT_GT(one.trials[i].seconds, 0);
    EXPECT_EQ(one.trials[i].seconds, all[1].trials[i].seconds);
  }
  for (const char* codec : {"int8:block=256", "topk:ratio=0.01", "powersgd:rank=4"}) {
    EXPECT_TRUE(one.costs.knows(codec)) << codec;
    EXPECT_GT(one.costs.at(codec, 1e6).encode_seconds, 0) << codec;
  }
  EXPECT_ERROR(measure_link(*local::make(1).front()), Errc::invalid_argument, "one rank");
}

/// They would measure other codecs, or as many that are others.
TEST(AutomaticCodec, RanksThatDifferInTheirRulesAloneAreFound) {
  struct Case {
    std::function<void(SessionOptions&)> change;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](SessionOptions& o) { o.policy.rules = {{.name = "other", .codec = parse_codec("topk:ratio=0.1+int7")}}; },
       "rank 1 has parameter \"other\" [96,64] fp32 topk:ratio=0.1"},
      {[](SessionOptions& o) { o.policy.rules = {{.name = "other", .codec = parse_codec("int8:block=64")}}; },
       "rank 1 has parameter \"other\" [96,64] fp32 int8:block=64"},
      {[](SessionOptions& o) { o.hierarchy = Hierarchy::of_equal_nodes(3, 1, parse_codec("bf16")); },
       "rank 1 has hierarchy of nodes 0 | 1 | 2, inside bf16"},
      {[](SessionOptions& o) { o.bucket_bytes = 1 << 14; }, "rank 1 has bucket of parameters 0"},
  };
  for (const Case& c : cases) {
    const TimePoint began = Clock::now();
    const auto outcomes = run_each(local::make(3), [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options{.codec = Auto{}};
      if (transport->rank() == 1) c.change(options);
      Session session(transport, options);
      session.add("matrix", {64, 64});
      session.add("other", {96, 64});
      session.seal();
    });
    expect_everywhere(outcomes, Errc::mismatch, c.says);
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
  }
}

TEST(AutomaticCodec, ARankThatCannotPlanIsNamedBeforeAnythingIsMeasured) {
  const auto outcomes = run_each(local::make(3), [](const std::shared_ptr<Transport>& transport) {
    SessionOptions options{.codec = Auto{}};
    if (transport->rank() == 1) options.hierarchy = {.node_of_rank = {0, 1}};
    Session session(transport, options);
    session.add("matrix", {64, 64});
    session.seal();
  });
  EXPECT_EQ(outcomes[1].error, Errc::invalid_argument);
  for (const int other : {0, 2}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(other)].error, Errc::mismatch);
    EXPECT_TRUE(contains(outcomes[static_cast<std::size_t>(other)].message, "rank 1 has cannot plan: "));
  }
}

TEST(AutomaticCodec, AChoiceThatIsNoneIsCorrupt) {
  const std::vector<Codec> codecs = detail::automatic_candidates();
  EXPECT_EQ(detail::codec_of_rank_0(codecs, codecs.size() - 1).spec(), codecs.back().spec());
  EXPECT_ERROR(detail::codec_of_rank_0(codecs, codecs.size()), Errc::corrupt, "rank 0 chose number 4 of 4 codecs");
  EXPECT_ERROR(detail::codec_of_rank_0(codecs, ~std::uint64_t{0}), Errc::corrupt, "rank 0 chose number");
}

}  // namespace
}  // namespace tightwire::testing::session_automatic_codec
