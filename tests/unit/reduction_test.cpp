// One bucket's reduction, driven by hand: what a Session would need days to reach.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tightwire/collective/block_reduction.hpp>
#include <tightwire/core_session.hpp>
#include <tightwire/error_memory.hpp>

#include "support/model.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::reduction_test {
namespace {

/// A bucket of one fp32 parameter and its residuals on one rank.
class Bucket {
 public:
  Bucket(Transport& transport, std::size_t count, const Codec& codec, const PlanOptions& options)
      : transport_(transport),
        parameters_{{count, ElementType::f32, codec.coder(ElementType::f32)}},
        plan_(make_plan(parameters_, transport.size(), options)),
        reduction_(transport, plan_, parameters_, {.fingerprint = 42, .channel = 3, .bucket = 5},
                   static_cast<float>(transport.size())),
        sender_(count),
        owner_(plan_.algorithm == Algorithm::two_shot ? plan_.owned[static_cast<std::size_t>(transport.rank())] : 0) {}

  void begin(std::vector<float>& data, std::uint64_t step, std::uint32_t sequence) {
    pointer_ = data.data();
    senders_ = {sender_.data(), sender_.data()};
    const Residual owner = owner_.empty() ? Residual{} : Residual{owner_.data(), owner_.data()};
    reduction_.begin({.data = {&pointer_, 1},
                      .senders = {&senders_, 1},
                      .owner = owner,
                      .step = step,
                      .rollbacks = static_cast<std::uint8_t>(step),
                      .sequence = sequence});
  }
  void finish() {
    const TimePoint until = Clock::now() + std::chrono::seconds(20);
    while (!reduction_.finished()) {
      if (reduction_.advance()) continue;
      if (Clock::now() >= until) throw Error(Errc::timeout, "waiting for rank " + reduction_.waiting_for());
      transport_.idle(until);
    }
  }
  BlockReduction& reduction() { return reduction_; }
  const BucketPlan& plan() const { return plan_; }

 private:
  Transport& transport_;
  std::vector<PlannedParameter> parameters_;
  BucketPlan plan_;
  BlockReduction reduction_;
  std::vector<float> sender_, owner_;
  void* pointer_ = nullptr;
  Residual senders_;
};

TEST(Reduction, CountersWrapWithoutConsequence) {
  struct Start {
    std::uint64_t step;
    std::uint32_t sequence;
  };
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot})
    for (const Start& start :
         {Start{0, 0}, Start{(std::uint64_t{1} << 63) - 3, (std::uint32_t{1} << 31) - 3},
          Start{std::numeric_limits<std::uint64_t>::max() - 3, 0xfffffffd}, Start{(std::uint64_t{1} << 32) - 3, 253}})
      run_all(3, [&](const std::shared_ptr<Transport>& transport) {
        Bucket bucket(*transport, 1000, Codec{}, {.algorithm = algorithm, .share_elements = 64});
        for (std::uint32_t i = 0; i < 10; ++i) {
          std::vector<float> data(1000);
          for (std::size_t k = 0; k < data.size(); ++k)
            data[k] = static_cast<float>(transport->rank()) + static_cast<float>(i) + static_cast<float>(k);
          bucket.begin(data, start.step + i, start.sequence + i);
          bucket.finish();
          for (std::size_t k = 0; k < data.size(); ++k)
            ASSERT_EQ(data[k], 1.0f + static_cast<float>(i) + static_cast<float>(k));
        }
      });
}

/// Remembers the headers of the frames that are sent.
class Recording final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  Ticket post(std::span<const Message> round) override {
    for (const Message& message : round)
      if (message.kind == Message::Kind::send) {
        FrameHeader header;
        std::memcpy(&header, message.data, sizeof header);
        headers.push_back(header);
        EXPECT_EQ(message.bytes, sizeof header + header.payload_bytes);
      }
    return WrappingTransport::post(round);
  }
  std::vector<FrameHeader> headers;
};

TEST(Reduction, FramesSayWhatTheyAreInFull) {
  std::vector<std::shared_ptr<Recording>> recordings;
  Transports transports;
  for (auto& inner : local::make(3)) {
    recordings.push_back(std::make_shared<Recording>(std::move(inner)));
    transports.push_back(recordings.back());
  }
  run_all(transports, [](const std::shared_ptr<Transport>& transport) {
    Bucket bucket(*transport, 3 * 64 * 6, Int4{}, {.algorithm = Algorithm::two_shot, .share_elements = 64});
    std::vector<float> data(3 * 64 * 6, 1.0f);
    bucket.begin(data, 0x123456789abcdef0u, 0xfedcba98u);
    bucket.finish();
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::multiset<std::pair<int, std::uint32_t>> frames;
    for (const FrameHeader& header : recordings[rank]->headers) {
      EXPECT_EQ(header.fingerprint, 42u);
      EXPECT_EQ(header.step, 0x123456789abcdef0u);
      EXPECT_EQ(header.rollbacks, 0xf0);
      EXPECT_EQ(header.sequence, 0xfedcba98u);
      EXPECT_EQ(header.bucket, 5u);
      EXPECT_EQ(header.sender, rank);
      EXPECT_EQ(header.nonfinite, 0u);
      frames.emplace(header.kind, header.chunk);
    }
    for (std::uint32_t chunk = 0; chunk < 6; ++chunk) {
      EXPECT_EQ(frames.count({static_cast<int>(FrameKind::contribution), chunk}), 2u);
      EXPECT_EQ(frames.count({static_cast<int>(FrameKind::result), chunk}), 2u);
    }
    EXPECT_EQ(frames.size(), 24u);
  }
}

TEST(Reduction, SaysForWhomItWaits) {
  const auto transports = local::make(3);
  Bucket bucket(*transports[0], 1000, Int8{}, {.algorithm = Algorithm::two_shot});
  std::vector<float> data(1000);
  bucket.begin(data, 0, 0);
  EXPECT_FALSE(bucket.reduction().finished());
  EXPECT_TRUE(bucket.reduction().advance());
  EXPECT_FALSE(bucket.reduction().advance()) << "nothing more to do alone";
  EXPECT_EQ(bucket.reduction().waiting_for(), "1, 2");
}

TEST(Reduction, KeepsAtMostItsDepthInFlight) {
  // Rank 0 alone: it may start kDepth chunks and no more, whatever their number.
  const auto transports = local::make(2);
  auto counter = std::make_shared<CountingTransport>(transports[0]);
  Bucket bucket(*counter, 100 * 256, Int8{}, {.algorithm = Algorithm::one_shot, .share_elements = 256});
  ASSERT_EQ(bucket.plan().chunks.size(), 100u);
  std::vector<float> data(100 * 256);
  bucket.begin(data, 0, 0);
  while (bucket.reduction().advance()) {
  }
  EXPECT_EQ(counter->messages(), 2 * BlockReduction::kDepth);
}

/// Says that a round is done a while after it was: time in which a peer may go on.
class Slow final : public WrappingTransport {
 public:
  using WrappingTransport::WrappingTransport;
  bool done(Ticket ticket) override {
    const bool result = WrappingTransport::done(ticket);
    if (result && ticket != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return result;
  }
};

TEST(Reduction, APeerThatIsAheadOverwritesNothing) {
  // Rank 0 pauses between the arrival of bytes and their use, while rank 1 begins the next reductions with other data.
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    Transports transports = local::make(2);
    transports[0] = std::make_shared<Slow>(transports[0]);
    run_all(transports, [&](const std::shared_ptr<Transport>& transport) {
      Bucket bucket(*transport, 2000, Codec{}, {.algorithm = algorithm, .share_elements = 512});
      for (std::uint32_t i = 0; i < 10; ++i) {
        std::vector<float> data(2000, static_cast<float>(transport->rank() * 2) + static_cast<float>(i));
        bucket.begin(data, 0, i);
        bucket.finish();
        for (const float x : data) ASSERT_EQ(x, 1.0f + static_cast<float>(i));
        std::fill(data.begin(), data.end(), -1e30f);  // the buffer is the caller's again
      }
    });
  }
}

/// Remembers which hints it was given, and does nothing with them.
class HintRecorder final : public Coder {
 public:
  struct Hints {
    bool sender = false, owner = false, encoded = false, combined = false, decoded = false;
    bool operator==(const Hints&) const = default;
  };
  HintRecorder(std::shared_ptr<const Coder> inner, Hints& hints) : inner_(std::move(inner)), hints_(hints) {}

  std::string spec() const override { return inner_->spec(); }
  std::size_t block() const noexcept override { return inner_->block(); }
  std::size_t wire_bytes(std::size_t count) const noexcept override { return inner_->wire_bytes(count); }
  bool lossless(ElementType type) const noexcept override { return inner_->lossless(type); }
  std::uint64_t encode(ElementType type, const Encode& job) const override {
    hints_.sender = hints_.sender || job.residual.past_cache;
    hints_.encoded = hints_.encoded || job.past_cache;
    return inner_->encode(type, job);
  }
  NonFinite combine(ElementType type, const Combine& job) const override {
    hints_.sender = hints_.sender || job.sender.past_cache;
    hints_.owner = hints_.owner || job.owner.past_cache;
    hints_.combined = hints_.combined || job.past_cache;
    return inner_->combine(type, job);
  }
  void decode(ElementType type, const Decode& job) const override {
    hints_.decoded = hints_.decoded || job.past_cache;
    inner_->decode(type, job);
  }

 private:
  std::shared_ptr<const Coder> inner_;
  Hints& hints_;
};

TEST(Reduction, HintsReachTheCoderForWhatIsLargeAlone) {
  using Hints = HintRecorder::Hints;
  for (const auto& [count, expected] :
       {std::pair{std::size_t{5'000'000}, Hints{true, true, true, true, true}}, std::pair{std::size_t{2'000}, Hints{}}})
    run_all(2, [&, count = count, expected = expected](const std::shared_ptr<Transport>& transport) {
      Hints hints;
      const std::vector<PlannedParameter> parameters = {
          {count, ElementType::f32, std::make_shared<HintRecorder>(Codec{Int8{}}.coder(ElementType::f32), hints)}};
      const BucketPlan plan = make_plan(parameters, 2, {.algorithm = Algorithm::two_shot});
      BlockReduction reduction(*transport, plan, parameters, {.fingerprint = 42, .channel = 3, .bucket = 5}, 2.0f);
      ErrorMemory memory;
      const auto sender = memory.add(count);
      const auto owner = memory.add(plan.owned[static_cast<std::size_t>(transport->rank())]);
      memory.allocate(true);
      std::vector<float> data(count, 0.5f);
      void* pointer = data.data();
      const Residual senders = memory.open(sender);
      reduction.begin({.data = {&pointer, 1},
                       .senders = {&senders, 1},
                       .owner = memory.open(owner),
                       .step = 0,
                       .rollbacks = 0,
                       .sequence = 0});
      while (!reduction.finished())
        if (!reduction.advance()) transport->idle(Clock::now() + std::chrono::seconds(20));
      EXPECT_EQ(hints, expected) << count;
    });
}

}  // namespace
}  // namespace tightwire::testing::reduction_test
