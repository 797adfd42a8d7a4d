// The 64 bytes in front of every payload: what is written there, and that nothing wrong in them passes.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <tightwire/frame.hpp>
#include <tightwire/local_transport.hpp>

#include "support/faulty_transport.hpp"
#include "support/ranks.hpp"

namespace tightwire::testing::frame_test {
namespace {

constexpr std::size_t kPayload = 48;

FrameHeader some_header() {
  FrameHeader header{};
  header.kind = static_cast<std::uint8_t>(FrameKind::contribution);
  header.rollbacks = 3;
  header.fingerprint = 0x1122334455667788u;
  header.step = 7;
  header.bucket = 9;
  header.chunk = 11;
  header.sequence = 13;
  header.sender = 1;
  header.payload_bytes = kPayload;
  header.nonfinite = 5;
  return header;
}

class FrameTest : public ::testing::Test {
 protected:
  FrameTest() : transport_(local::make(2)[0], {}), frame_(sizeof(FrameHeader) + kPayload) {
    for (std::size_t i = 0; i < kPayload; ++i) frame_[sizeof(FrameHeader) + i] = static_cast<std::byte>(i * 37);
    frame::seal(transport_, frame_.data(), some_header());
  }

  FrameHeader check(const FrameHeader& expected) { return frame::check(transport_, frame_.data(), expected); }
  /// Changes the header of the frame and makes the checksum right again.
  void change(const std::function<void(FrameHeader&)>& edit) {
    FrameHeader header;
    std::memcpy(&header, frame_.data(), sizeof header);
    edit(header);
    std::memcpy(frame_.data(), &header, sizeof header);
    FaultyTransport::reseal(frame_);
  }

  FaultyTransport transport_;
  std::vector<std::byte> frame_;
};

TEST_F(FrameTest, CarriesWhatWasSealed) {
  const FrameHeader header = check(some_header());
  EXPECT_EQ(header.nonfinite, 5u);
  EXPECT_EQ(header.magic, kFrameMagic);
  EXPECT_EQ(header.version, kWireVersion);
  EXPECT_EQ(header.checksum, transport_.checksum(std::span<const std::byte>(frame_).subspan(8)));
}

TEST_F(FrameTest, LayoutIsThatOfTheWireFormat) {
  const auto byte = [&](std::size_t at) { return std::to_integer<int>(frame_[at]); };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(frame_.data()) + 8, 4), "TWRF");
  EXPECT_EQ(byte(12), static_cast<int>(kWireVersion));
  EXPECT_EQ(byte(14), 2);     // kind
  EXPECT_EQ(byte(15), 3);     // rollbacks
  EXPECT_EQ(byte(16), 0x88);  // fingerprint, lowest byte first
  EXPECT_EQ(byte(23), 0x11);
  EXPECT_EQ(byte(24), 7);   // step
  EXPECT_EQ(byte(32), 9);   // bucket
  EXPECT_EQ(byte(36), 11);  // chunk
  EXPECT_EQ(byte(40), 13);  // sequence
  EXPECT_EQ(byte(44), 1);   // sender
  EXPECT_EQ(byte(48), static_cast<int>(kPayload));
  EXPECT_EQ(byte(56), 5);  // nonfinite
}

TEST_F(FrameTest, EveryDamagedBitIsNoticed) {
  for (std::size_t at = 0; at < frame_.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      frame_[at] ^= static_cast<std::byte>(1 << bit);
      try {
        check(some_header());
        ADD_FAILURE() << "bit " << bit << " of byte " << at << " may be wrong";
      } catch (const Error& error) {
        const bool version = at == 12 || at == 13;
        EXPECT_EQ(error.code(), version ? Errc::mismatch : Errc::corrupt) << "byte " << at;
        EXPECT_TRUE(contains(error.what(), "rank 1"));
      }
      frame_[at] ^= static_cast<std::byte>(1 << bit);
    }
  EXPECT_NO_THROW(check(some_header()));
}

TEST_F(FrameTest, SoundFramesThatDoNotBelongHereAreRefusedByName) {
  struct Case {
    std::string text;
    Errc code;
    std::function<void(FrameHeader&)> edit;
  };
  const std::vector<Case> cases = {
      {"not a tightwire frame", Errc::corrupt, [](FrameHeader& h) { h.magic ^= 0x20; }},
      {"wire version 9, here " + std::to_string(kWireVersion), Errc::mismatch, [](FrameHeader& h) { h.version = 9; }},
      {"kind is 3, expected 2", Errc::corrupt, [](FrameHeader& h) { h.kind = 3; }},
      {"sender is 4, expected 1", Errc::corrupt, [](FrameHeader& h) { h.sender = 4; }},
      {"payload size is 47, expected 48", Errc::corrupt, [](FrameHeader& h) { h.payload_bytes = 47; }},
      {"another plan", Errc::mismatch, [](FrameHeader& h) { h.fingerprint ^= std::uint64_t{1} << 63; }},
      {"has ended 8 steps (3 rolled back", Errc::mismatch, [](FrameHeader& h) { h.step = 8; }},
      {"this rank 7 steps (3 rolled back", Errc::mismatch, [](FrameHeader& h) { h.step = 8; }},
      {"has ended 7 steps (4 rolled back", Errc::mismatch, [](FrameHeader& h) { h.rollbacks = 4; }},
      {"bucket is 10, expected 9", Errc::corrupt, [](FrameHeader& h) { h.bucket = 10; }},
      {"sequence number is 269, expected 13", Errc::corrupt, [](FrameHeader& h) { h.sequence += 256; }},
      {"chunk is 65547, expected 11", Errc::corrupt, [](FrameHeader& h) { h.chunk += 65536; }},
  };
  const std::vector<std::byte> sound = frame_;
  for (const Case& c : cases) {
    frame_ = sound;
    change(c.edit);
    EXPECT_ERROR(check(some_header()), c.code, c.text);
  }
}

TEST_F(FrameTest, APayloadSizeThatLiesIsNotRead) {
  // Under ASan: nothing beyond the bytes that were received is looked at.
  change([](FrameHeader& h) { h.payload_bytes = std::uint64_t{1} << 40; });
  EXPECT_ERROR(check(some_header()), Errc::corrupt, "payload size");
}

TEST(MessageTag, FitsIn48BitsAndTellsMessagesInFlightApart) {
  std::set<std::uint64_t> tags;
  for (const std::uint32_t channel : {0u, 1u, 255u, 256u, 16'383u, 16'384u, 1u << 21, (1u << 22) - 1})
    for (const FrameKind kind : {FrameKind::greeting, FrameKind::contribution, FrameKind::result})
      for (const std::uint32_t sequence : {0u, 1u, 255u})
        for (const std::uint32_t chunk : {0u, 1u, 65535u}) {
          const std::uint64_t tag = message_tag(channel, kind, sequence, chunk);
          EXPECT_EQ(tag >> 48, 0u);
          EXPECT_TRUE(tags.insert(tag).second) << tag;
        }
  EXPECT_EQ(message_tag(1u << 22, FrameKind::result, 256, 65536), message_tag(0, FrameKind::result, 0, 0));
}

}  // namespace
}  // namespace tightwire::testing::frame_test
