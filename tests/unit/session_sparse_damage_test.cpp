// Sparse frames that are damaged, announce nonsense or do not come: an error that names their sender, and never a write
// outside of a buffer.
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

namespace tightwire::testing::session_sparse_damage {
namespace {

constexpr std::uint64_t kAnnouncement = 0, kFrame = 1;

Model sparse_model() {
  return {{"a", {900}, ElementType::f32, TopK{.ratio = 0.1}}, {"b", {901}, ElementType::bf16, TopK{.ratio = 0.5}}};
}
bool is(const Message& message, FrameKind kind, std::uint64_t part) {
  return (message.tag >> 38 & 3) == static_cast<std::uint64_t>(kind) && (message.tag & 0xffff) == part;
}

/// One reduction on three ranks in which what rank 0 sends to rank 1 suffers.
std::vector<Outcome> reduce_with(FrameKind kind, std::uint64_t part, const std::function<Fault()>& fault,
                                 std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  const auto script = [&](int rank) -> FaultyTransport::Script {
    if (rank != 0) return {};
    return [&](const Message& message) {
      // Greetings have the same places in their tags, and another kind.
      return message.peer == 1 && is(message, kind, part) ? fault() : Fault{};
    };
  };
  return run_each(faulty(3, script), [&](const std::shared_ptr<Transport>& transport) {
    const Model model = sparse_model();
    SessionOptions options;
    options.plan.algorithm = Algorithm::two_shot;
    options.timeout = transport->rank() == 1 ? timeout : std::chrono::seconds(20);
    const auto session = sealed_session(transport, model, options);
    Gradients gradients(model);
    gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
    struct Check {
      const Gradients& of;
      ~Check() { EXPECT_TRUE(of.guards_intact()); }
    } const check{gradients};
    session->all_reduce(gradients.pointers());
  });
}

TEST(SparseDamage, ABitAnywhereIsNoticed) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::uint64_t part : {kAnnouncement, kFrame})
      for (const std::size_t at : {0u, 8u, 15u, 16u, 24u, 36u, 40u, 44u, 48u, 56u, 63u}) {
        SCOPED_TRACE("byte " + std::to_string(at) + " of part " + std::to_string(part));
        const auto outcomes = reduce_with(kind, part, [at] {
          return Fault{.change = [at](std::span<std::byte> frame) { frame[at] ^= std::byte{1}; }};
        });
        EXPECT_EQ(outcomes[1].error, Errc::corrupt);
        EXPECT_TRUE(contains(outcomes[1].message, "frame from rank 0"));
      }
}

TEST(SparseDamage, AnAnnouncementOfTooMuchIsRefused) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::uint64_t bytes : {std::uint64_t{100'000}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      const auto outcomes = reduce_with(kind, kAnnouncement, [bytes] {
        return Fault{.change = [bytes](std::span<std::byte> frame) {
          std::memcpy(frame.data() + offsetof(FrameHeader, nonfinite), &bytes, sizeof bytes);
          FaultyTransport::reseal(frame);
        }};
      });
      EXPECT_EQ(outcomes[1].error, Errc::corrupt);
      EXPECT_TRUE(contains(outcomes[1].message,
                           "frame from rank 0: announces a payload of " + std::to_string(bytes) + " bytes"));
    }
}

TEST(SparseDamage, AnotherLengthThanAnnouncedIsAnError) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::size_t bytes : {0u, 64u, 65u, 100'000u}) {
      const auto outcomes = reduce_with(kind, kFrame, [bytes] { return Fault{.resize = bytes}; });
      for (const std::size_t rank : {0u, 1u})
        EXPECT_TRUE(outcomes[rank].error == Errc::corrupt || outcomes[rank].error == Errc::peer_lost);
    }
}

TEST(SparseDamage, WhatDoesNotComeIsATimeoutThatNamesItsSender) {
  for (const FrameKind kind : {FrameKind::contribution, FrameKind::result})
    for (const std::uint64_t part : {kAnnouncement, kFrame}) {
      const auto outcomes = reduce_with(
          kind, part, [] { return Fault{.drop = true}; }, std::chrono::milliseconds(400));
      EXPECT_EQ(outcomes[1].error, Errc::timeout);
      EXPECT_TRUE(contains(outcomes[1].message, "waiting for rank 0"));
    }
}

TEST(SparseDamage, APayloadOfAnyBytesIsReadOrRefused) {
  // Sound frames, as a rank with a bug would send them.
  FastRandom random(17);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 400; ++round) {
    const FrameKind kind = round % 2 == 0 ? FrameKind::contribution : FrameKind::result;
    const std::uint64_t seed = random.bits();
    const auto outcomes = reduce_with(kind, kFrame, [seed] {
      return Fault{.change = [seed](std::span<std::byte> frame) {
        FastRandom local(seed);
        const std::size_t payload = frame.size() - sizeof(FrameHeader);
        for (std::size_t i = 0; i < 1 + local.below(4); ++i)
          frame[sizeof(FrameHeader) + local.below(local.below(2) == 0 ? 12 : payload)] =
              static_cast<std::byte>(local.bits());
        FaultyTransport::reseal(frame);
      }};
    });
    if (!outcomes[1].error) {
      ++accepted;
      continue;
    }
    ++refused;
    ASSERT_EQ(outcomes[1].error, Errc::corrupt) << outcomes[1].message;
    ASSERT_TRUE(contains(outcomes[1].message, "frame from rank 0"));
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(accepted, 50);
}

}  // namespace
}  // namespace tightwire::testing::session_sparse_damage
