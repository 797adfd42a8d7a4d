// Telemetry: what it writes is what the Session measured, in files that their readers understand; it warns once; and
// the error it samples is the error.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/session.hpp>
#include <tightwire/telemetry.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::session_telemetry {
namespace {

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "telemetry-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp";
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str();
}
std::vector<nlohmann::json> lines(const std::string& path) {
  std::vector<nlohmann::json> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

Model model() {
  return {{"first \"layer\"", {64, 64}, ElementType::f32, Int4{}},
          {"second", {40, 70}, ElementType::bf16, Int8{}},
          {"bias", {33}, ElementType::f32, Codec{}}};
}

/// Steps of a Session with telemetry on every rank; `look` is called behind the last one.
template <class Look>
void watch(int ranks, const TelemetryOptions& telemetry, int steps, const Look& look, bool bucket_each = true) {
  run_all(ranks, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options;
    options.bucket_bytes = bucket_each ? 1 : options.bucket_bytes;
    options.observer = std::make_shared<Telemetry>(telemetry);
    const Model parameters = model();
    {
      const auto session = sealed_session(transport, parameters, options);
      Gradients gradients(parameters);
      for (int step = 0; step < steps; ++step) {
        gradients.fill_bell(static_cast<std::uint64_t>(100 * step + transport->rank()));
        session->all_reduce(gradients.pointers());
        step == 1 ? session->rollback() : static_cast<void>(session->commit());
      }
      look(*session);
    }
  });
}

TEST(Telemetry, JsonLinesParseAndAddUpToTheStatistics) {
  const Folder folder;
  StepStatistics total;
  watch(2, {.json_lines = folder.file("{rank}.jsonl"), .sample_every = 4}, 9, [&](const Session& session) {
    if (session.rank() == 1) total = session.total();
  });
  const auto all = lines(folder.file("1.jsonl"));
  ASSERT_EQ(all.size(), 10u);
  EXPECT_EQ(all[0]["session"]["rank"], 1);
  EXPECT_NE(all[0]["session"]["description"].get<std::string>().find("first \"layer\""), std::string::npos);
  std::uint64_t sent = 0, of_buckets = 0, calls = 0;
  double encode = 0, blocked = 0, step = 0, wire = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["step"], i - 1);
    EXPECT_EQ(all[i]["kept"], i != 2);
    EXPECT_EQ(all[i].contains("sample"), i % 4 == 0);
    sent += all[i]["sent_bytes"].get<std::uint64_t>();
    calls += all[i]["reductions"].get<std::uint64_t>();
    encode += all[i]["encode_seconds"].get<double>();
    blocked += all[i]["blocked_seconds"].get<double>();
    step += all[i]["step_seconds"].get<double>();
    ASSERT_EQ(all[i]["buckets"].size(), 3u);
    EXPECT_EQ(all[i]["buckets"][0]["name"], "first \"layer\"");
    wire += all[i]["wire_seconds"].get<double>();
    for (const auto& bucket : all[i]["buckets"]) {
      of_buckets += bucket["sent_bytes"].get<std::uint64_t>();
      EXPECT_LE(bucket["began"].get<double>(), bucket["ended"].get<double>());
    }
  }
  EXPECT_EQ(sent, total.sent_bytes);
  EXPECT_EQ(of_buckets, total.sent_bytes);
  EXPECT_EQ(calls, total.calls);
  EXPECT_NEAR(encode, total.encode_seconds, 1e-9);
  EXPECT_NEAR(blocked, total.blocked_seconds, 1e-9);
  EXPECT_NEAR(step, total.step_seconds, 1e-9);
  EXPECT_NEAR(wire, total.wire_seconds, 1e-9);
}

TEST(Telemetry, WaitingOfBucketsSideBySideIsCountedOnce) {
  std::atomic<bool> begins{false};
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    SessionOptions options{.codec = Codec{}, .bucket_bytes = 1};
    Session session(transport, options);
    for (int i = 0; i < 40; ++i) session.add("matrix " + std::to_string(i), {32, 32});
    session.seal();
    std::vector<float> gradient(40 * 32 * 32, 1.0f);
    // The other rank comes late, so that all of ours wait for it together.
    if (transport->rank() == 0) begins = true;
    if (transport->rank() == 1) {
      while (!begins) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    session.all_reduce(gradient);
    session.commit();
    const StepStatistics& step = session.last_step();
    double of_buckets = 0;
    for (BucketId id = 0; id < session.buckets(); ++id) of_buckets += session.bucket_statistics(id).wire_seconds;
    EXPECT_LE(step.wire_seconds, step.busy_seconds);
    EXPECT_LE(step.busy_seconds, step.step_seconds);
    EXPECT_LE(step.wire_seconds + step.encode_seconds + step.combine_seconds + step.decode_seconds, step.step_seconds);
    if (transport->rank() == 1) return;
    EXPECT_GE(step.wire_seconds, 0.05);
    EXPECT_GE(of_buckets, 40 * 0.05);  // each by itself
  });
}

TEST(Telemetry, TheTraceIsJsonAndHasEveryReduction) {
  const Folder folder;
  watch(2, {.trace = folder.file("trace-{rank}.json")}, 5, [](const Session&) {});
  const auto trace = nlohmann::json::parse(content(folder.file("trace-0.json")));
  std::size_t steps = 0, reductions = 0;
  for (const auto& event : trace) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    ++(event["tid"] == 0 ? steps : reductions);
  }
  EXPECT_EQ(steps, 5u);
  EXPECT_EQ(reductions, 15u);
}

TEST(Telemetry, PrometheusFileHasTheCounters) {
  const Folder folder;
  std::uint64_t sent = 0;
  watch(2, {.prometheus = folder.file("{rank}.prom")}, 6, [&](const Session& session) {
    if (session.rank() == 0) sent = session.total().sent_bytes;
  });
  const std::string text = content(folder.file("0.prom"));
  EXPECT_TRUE(contains(text, "# TYPE tightwire_sent_bytes_total counter\ntightwire_sent_bytes_total{rank=\"0\"} " +
                                 std::to_string(sent) + "\n"));
  EXPECT_TRUE(contains(text, "tightwire_steps_total{rank=\"0\"} 6\n"));
  EXPECT_TRUE(contains(text, "tightwire_steps_rolled_back_total{rank=\"0\"} 1\n"));
  EXPECT_FALSE(std::filesystem::exists(folder.file("0.prom.draft")));
}

TEST(Telemetry, SamplesThatAreNotNumbersLeaveFilesReadable) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), 0.0f}) {
    const Folder folder;
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options;
      options.observer = std::make_shared<Telemetry>(TelemetryOptions{
          .json_lines = folder.file("{rank}.jsonl"), .prometheus = folder.file("{rank}.prom"), .sample_every = 1});
      Session session(transport, options);
      session.add("matrix", {64, 64});
      session.seal();
      std::vector<float> gradient(64 * 64);
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 0.37f * static_cast<float>(i);
      session.all_reduce(gradient);  // leaves a residual
      session.commit();
      std::fill(gradient.begin(), gradient.end(), value);
      session.all_reduce(gradient);
      session.commit();
    });
    const auto all = lines(folder.file("0.jsonl"));
    ASSERT_EQ(all.size(), 3u);
    EXPECT_TRUE(all[1]["sample"]["error"].is_number());
    EXPECT_TRUE(all[2]["sample"]["error"].is_null()) << all[2]["sample"];
    const std::string text = content(folder.file("0.prom"));
    EXPECT_TRUE(contains(text, "\ntightwire_sample_error{rank=\"0\"} NaN\n"));
    EXPECT_FALSE(contains(text, "null"));
  }
}

TEST(Telemetry, TheSampledErrorIsTheErrorAndSamplesTakeTurns) {
  std::vector<SampleRecord> samples;
  TelemetryOptions options{.callback = {}, .sample_every = 2, .sample_elements = 3000};
  std::mutex mutex;
  options.callback = [&](const StepRecord& record) {
    const std::lock_guard lock(mutex);
    if (record.sample) samples.push_back(*record.sample);
  };
  // Both ranks add theirs; the mean and its error are the same on both.
  watch(2, options, 6, [](const Session&) {});
  ASSERT_EQ(samples.size(), 6u);
  for (const SampleRecord& sample : samples) {
    EXPECT_GT(sample.gradient_norm, 0);
    if (sample.parameter == "bias") {
      EXPECT_LT(sample.error, 1e-6);
      EXPECT_EQ(sample.residual_norm, 0);
      EXPECT_EQ(sample.elements, 33u);
      continue;
    }
    const bool int4 = sample.parameter == "first \"layer\"";
    EXPECT_GT(sample.error, int4 ? 0.03 : 0.002) << sample.parameter;
    EXPECT_LT(sample.error, int4 ? 0.3 : 0.03) << sample.parameter;
    EXPECT_EQ(sample.elements, int4 ? 3000u : 2800u);
    EXPECT_GT(sample.residual_norm, 0);
  }
  for (const char* name : {"first \"layer\"", "second", "bias"})
    EXPECT_EQ(std::count_if(samples.begin(), samples.end(), [&](const auto& s) { return s.parameter == name; }), 2)
        << name;
}

TEST(Telemetry, WarnsOnceAboveTheShareAndNotBelow) {
  for (const double share : {0.0, 1.0}) {
    std::mutex mutex;
    std::vector<std::string> told;
    TelemetryOptions options{.warn_share = share, .warn_steps = 3, .sample_every = 0};
    options.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      told.push_back(line);
    };
    watch(2, options, 12, [](const Session&) {});
    if (share == 1.0) {
      EXPECT_TRUE(told.empty());
      continue;
    }
    ASSERT_EQ(told.size(), 2u);  // one per rank
    for (const std::string& line : told) {
      EXPECT_TRUE(contains(line, "of the last 3 steps went into waiting for communication, above 0 %"));
      EXPECT_TRUE(contains(line, "tightwire plan"));
    }
  }
}

TEST(Telemetry, WarnsAboveThirtyPercentOfTwentyStepsUnlessToldOtherwise) {
  EXPECT_EQ(TelemetryOptions{}.warn_share, 0.3);
  std::mutex mutex;
  std::vector<std::string> told;
  TelemetryOptions options;
  options.log = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    told.push_back(line);
  };
  watch(2, options, 19, [](const Session&) {});
  EXPECT_TRUE(told.empty());
  watch(2, options, 60, [](const Session&) {});  // nothing but communication, three times twenty steps
  ASSERT_EQ(told.size(), 2u);                    // once per rank
  for (const std::string& line : told) EXPECT_TRUE(contains(line, "of the last 20 steps")) << line;
  for (const std::string& line : told) EXPECT_TRUE(contains(line, "above 30 %")) << line;
}

TEST(Telemetry, OverlapIsWhatNobodyWaitedFor) {
  std::vector<double> overlaps;
  run_all(2, [&](const std::shared_ptr<Transport>& transport) {
    TelemetryOptions telemetry{.sample_every = 0};
    if (transport->rank() == 0)
      telemetry.callback = [&](const StepRecord& record) { overlaps.push_back(record.overlap); };
    SessionOptions options;
    options.observer = std::make_shared<Telemetry>(telemetry);
    Session session(transport, options);
    session.add("matrix", {1024, 1024});
    session.seal();
    std::vector<float> gradient(1024 * 1024, 1.0f);
    session.all_reduce(gradient);
    session.commit();
    void* data[] = {gradient.data()};
    Handle handle = session.start(0, data);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // another's backward pass
    handle.wait();
    session.commit();
  });
  ASSERT_EQ(overlaps.size(), 2u);
  EXPECT_LT(overlaps[0], 0.2);
  EXPECT_GT(overlaps[1], 0.8);
}

TEST(Telemetry, RanksThatSampleOtherwiseAreToldAtOnce) {
  for (const std::uint64_t other : {std::uint64_t{0}, std::uint64_t{7}}) {
    const auto outcomes = run_each(local::make(2), [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options;
      const std::uint64_t every = transport->rank() == 0 ? 50 : other;
      if (transport->rank() == 0 || other != 0)
        options.observer = std::make_shared<Telemetry>(TelemetryOptions{.sample_every = every});
      Session session(transport, options);
      session.add("matrix", {64, 64});
      session.seal();
    });
    expect_everywhere(outcomes, Errc::mismatch, "rank 0 has telemetry samples 65536 elements every 50 steps");
  }
  run_all(2, [](const std::shared_ptr<Transport>& transport) {  // one rank may watch for itself
    SessionOptions options;
    if (transport->rank() == 0) options.observer = std::make_shared<Telemetry>(TelemetryOptions{.sample_every = 0});
    Session session(transport, options);
    session.add("matrix", {64, 64});
    session.seal();
  });
}

TEST(Telemetry, ThrowsWhatTheCallbackThrowsAndGoesOnWithTheNextStep) {
  const Folder folder;
  std::vector<StepRecord> records;
  TelemetryOptions options{.json_lines = folder.file("steps"), .callback = {}, .sample_every = 0};
  options.callback = [&](const StepRecord& record) {
    records.push_back(record);
    if (record.step == 0) throw Error(Errc::internal, "not today");
  };
  {
    SessionOptions with;
    with.observer = std::make_shared<Telemetry>(options);
    Session session(local::make(1).front(), with);
    session.add("matrix", {4, 4});
    session.seal();
    std::vector<float> gradient(16, 1.0f);
    session.all_reduce(gradient);
    EXPECT_ERROR(session.commit(), Errc::internal, "not today");
    session.all_reduce(gradient);
    EXPECT_TRUE(session.commit());
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].step, 1u);
  EXPECT_EQ(records[1].buckets[0].statistics.calls, 1u);  // of its own step alone
  EXPECT_EQ(lines(folder.file("steps")).size(), 3u);
}

TEST(Telemetry, ARestartGoesOnBehindTheLinesThatAreThere) {
  const Folder folder;
  for (int run = 0; run < 2; ++run) watch(2, {.json_lines = folder.file("{rank}")}, 3, [](const Session&) {});
  const auto all = lines(folder.file("0"));
  ASSERT_EQ(all.size(), 8u);
  EXPECT_TRUE(all[0].contains("session"));
  EXPECT_TRUE(all[4].contains("session"));
}

TEST(Telemetry, ObserversThatThrowKeepNoOtherRankWaiting) {
  class Throwing final : public Observer {
   public:
    void started(const Session&, const Bucket& bucket) override { once(bucket, "started"); }
    void finished(const Session&, const Bucket& bucket) override { once(bucket, "finished"); }
    std::string when;

   private:
    void once(const Bucket& bucket, const std::string& now) {
      if (now == when && bucket.parameters.front() == 1)
        throw Error(Errc::internal, std::exchange(when, "") + " fails");
    }
  };
  for (const std::string when : {"started", "finished"}) {
    std::vector<std::vector<float>> results(2);
    run_all(2, [&](const std::shared_ptr<Transport>& transport) {
      SessionOptions options{.timeout = std::chrono::seconds(5), .bucket_bytes = 1};
      const auto observer = std::make_shared<Throwing>();
      if (transport->rank() == 0) options.observer = observer;
      Session session(transport, options);
      for (const char* name : {"a", "b", "c"}) session.add(name, {64, 64});
      session.seal();
      std::vector<float> gradient(3 * 64 * 64);
      for (int step = 0; step < 2; ++step) {
        for (std::size_t i = 0; i < gradient.size(); ++i)
          gradient[i] = static_cast<float>(i % 97) * static_cast<float>(transport->rank() + step + 1);
        if (step == 0 && transport->rank() == 0) {
          observer->when = when;
          EXPECT_ERROR(session.all_reduce(gradient), Errc::internal, when + " fails");
        } else {
          session.all_reduce(gradient);
        }
        session.commit();
        auto& result = results[static_cast<std::size_t>(transport->rank())];
        result.insert(result.end(), gradient.begin(), gradient.end());
      }
    });
    EXPECT_EQ(results[0], results[1]) << when;
  }
}

TEST(Telemetry, RefusesWhatCannotBe) {
  EXPECT_ERROR(Telemetry({.warn_share = -1}), Errc::invalid_argument, "warn_share");
  EXPECT_ERROR(Telemetry({.warn_steps = 0}), Errc::invalid_argument, "warn_steps");
  SessionOptions options;
  options.observer = std::make_shared<Telemetry>(TelemetryOptions{.json_lines = "/nowhere/steps"});
  Session session(local::make(1).front(), options);
  session.add("matrix", {4, 4});
  EXPECT_ERROR(session.seal(), Errc::invalid_argument, "/nowhere/steps");
  const auto outcomes = run_each(local::make(2), [](const std::shared_ptr<Transport>& transport) {
    SessionOptions shared;
    shared.observer = std::make_shared<Telemetry>(TelemetryOptions{.json_lines = "/nowhere/steps"});
    Session of_two(transport, shared);
    of_two.add("matrix", {4, 4});
    of_two.seal();
  });
  for (const Outcome& outcome : outcomes)
    EXPECT_TRUE(contains(outcome.message, "json_lines \"/nowhere/steps\" is the same file for all of 2 ranks"));
  options.observer = std::make_shared<Telemetry>(TelemetryOptions{});
  Session first(local::make(1).front(), options), second(local::make(1).front(), options);
  first.add("matrix", {4, 4});
  second.add("matrix", {4, 4});
  first.seal();
  EXPECT_ERROR(second.seal(), Errc::invalid_argument, "one of its own");
}

TEST(Telemetry, AFileThatFailsIsGivenUpAndToldAndTrainingGoesOn) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  std::vector<std::string> told;
  TelemetryOptions options{.trace = "/dev/full", .warn_share = 1, .sample_every = 0};
  options.log = [&](const std::string& line) { told.push_back(line); };
  SessionOptions with;
  with.observer = std::make_shared<Telemetry>(options);
  Session session(local::make(1).front(), with);
  session.add("matrix", {4, 4});
  session.seal();
  std::vector<float> gradient(16, 1.0f);
  for (int step = 0; step < 200; ++step) {
    session.all_reduce(gradient);
    session.commit();
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(contains(told[0], "/dev/full"));
  EXPECT_EQ(session.steps(), 200u);
}

TEST(Telemetry, WhatCannotBeWrittenAtTheEndIsTold) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  std::vector<std::string> told;
  TelemetryOptions options{.trace = "/dev/full", .sample_every = 0};
  options.log = [&](const std::string& line) { told.push_back(line); };
  {
    SessionOptions with;
    with.observer = std::make_shared<Telemetry>(options);
    Session session(local::make(1).front(), with);
    session.add("matrix", {4, 4});
    session.seal();
    EXPECT_TRUE(told.empty());
  }
  ASSERT_GE(told.size(), 1u);
  EXPECT_TRUE(contains(told[0], "/dev/full"));
  EXPECT_TRUE(contains(told[0], "not complete"));
}

}  // namespace
}  // namespace tightwire::testing::session_telemetry
