// What a peer writes into shared memory is checked before it is used.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shm/lane.hpp"

namespace tightwire::shm {
namespace {

constexpr std::uint64_t kMemoryAt = 4096;

/// Our end of a lane; the test writes what the peer would, and reads what it would get.
class ShmLane : public ::testing::Test {
 protected:
  ShmLane()
      : stream_data_(1024),
        memory_(100'000, std::byte{7}),
        attachments_(file_, 0),
        peer_(in_.get()),
        lane_(3, ends(), table_, attachments_) {}

  Lane::Ends ends() {
    return {.in = in_.get(),
            .out = out_.get(),
            .stream_in = {&stream_, stream_data_.data(), stream_data_.size()},
            .stream_out = {&stream_, stream_data_.data(), stream_data_.size()},
            .peer = &head_,
            .memory = memory_,
            .memory_at = kMemoryAt};
  }

  void expect_message(std::size_t bytes, const std::byte** place = nullptr) {
    data_.assign(bytes, std::byte{0});
    round_ = &table_.open();
    lane_.receive(table_.add(*round_, {Message::Kind::receive, 3, 5, data_.data(), bytes, place}));
  }
  std::string corrupt() {
    try {
      lane_.progress();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::corrupt);
      return error.what();
    }
    return "no error";
  }
  void expect_in(const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }

  std::unique_ptr<Ring> in_ = std::make_unique<Ring>(), out_ = std::make_unique<Ring>();
  Stream stream_{};
  std::vector<std::byte> stream_data_, memory_, data_;
  SegmentHead head_{};
  MemoryFile file_;
  RoundTable table_;
  Attachments attachments_;
  RingWriter peer_;
  Lane lane_;
  Round* round_ = nullptr;
};

TEST_F(ShmLane, TakesWhatLiesInTheMemoryThatThePeerShares) {
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{80'000}}) {
    expect_message(20'000);
    peer_.push({.kind = RecordKind::offer, .tag = 5, .bytes = 20'000, .offset = kMemoryAt + at, .id = 1}, nullptr, 0);
    lane_.progress();
    EXPECT_EQ(round_->incomplete, 0u);
    EXPECT_EQ(data_, std::vector<std::byte>(20'000, std::byte{7}));
  }
}

TEST_F(ShmLane, LendsWhatLiesThereAndAnswersWhenItIsReleased) {
  const std::byte* place = nullptr;
  expect_message(20'000, &place);
  peer_.push({.kind = RecordKind::offer, .tag = 5, .bytes = 20'000, .offset = kMemoryAt + 9, .id = 77}, nullptr, 0);
  lane_.progress();
  EXPECT_EQ(place, memory_.data() + 9);
  EXPECT_EQ(data_, std::vector<std::byte>(20'000, std::byte{0})) << "nothing is copied";
  RingReader answers(out_.get());
  EXPECT_FALSE(answers.has_next());
  lane_.release(*round_->first);
  ASSERT_TRUE(answers.has_next());
  const RecordFields answer = answers.next().fields;
  EXPECT_EQ(answer.kind, RecordKind::taken);
  EXPECT_EQ(answer.id, 77u);
}

TEST_F(ShmLane, RefusesPlacesOutsideThatMemory) {
  for (const std::uint64_t offset : {std::uint64_t{0}, kMemoryAt - 1, kMemoryAt + 80'001, kMemoryAt + 100'001,
                                     ~std::uint64_t{0}, ~std::uint64_t{0} - 19'999}) {
    SCOPED_TRACE(offset);
    const std::byte* place = nullptr;
    expect_message(20'000, &place);
    peer_.push({.kind = RecordKind::offer, .tag = 5, .bytes = 20'000, .offset = offset, .id = 1}, nullptr, 0);
    expect_in("is not in the memory that rank 3 shares", corrupt());
    EXPECT_EQ(place, nullptr);
  }
}

TEST_F(ShmLane, RefusesAnotherSizeThanItsReceive) {
  expect_message(20'000);
  peer_.push({.kind = RecordKind::offer, .tag = 5, .bytes = 20'001, .offset = kMemoryAt, .id = 1}, nullptr, 0);
  expect_in("expected 20000 bytes, got 20001", corrupt());
}

TEST_F(ShmLane, RefusesMessagesThatReachOutOfTheRing) {
  for (const std::uint64_t bytes : {std::uint64_t{kLargestInline + 1}, std::uint64_t{kRingBytes}, ~std::uint64_t{0}}) {
    SCOPED_TRACE(bytes);
    in_ = std::make_unique<Ring>();
    RoundTable table;
    Lane lane(3, ends(), table, attachments_);
    RingWriter(in_.get()).push({.kind = RecordKind::bytes, .tag = 5, .bytes = bytes}, nullptr, 0);
    EXPECT_THROW(lane.progress(), Error);
  }
}

TEST_F(ShmLane, RefusesAnswersToWhatItNeverOffered) {
  for (const RecordKind kind : {RecordKind::taken, RecordKind::wanted}) {
    peer_.push({.kind = kind, .id = std::uint64_t{1} << 32}, nullptr, 0);
    expect_in("an answer to what was never offered", corrupt());
  }
}

TEST_F(ShmLane, RefusesASecondAnswer) {
  std::vector<std::byte> data(30'000);
  lane_.send(table_.add(table_.open(), {Message::Kind::send, 3, 5, data.data(), data.size()}));
  RingReader offers(out_.get());
  ASSERT_TRUE(offers.has_next());
  const std::uint64_t id = offers.next().fields.id;
  peer_.push({.kind = RecordKind::taken, .id = id}, nullptr, 0);
  lane_.progress();
  EXPECT_EQ(table_.incomplete_count(), 0u);
  peer_.push({.kind = RecordKind::taken, .id = id}, nullptr, 0);
  expect_in("an answer to what was never offered", corrupt());
}

/// One early message stays while others are matched behind it: they must not fill the ring.
TEST_F(ShmLane, KeepsTheRingOpenBehindAnEarlyMessage) {
  std::vector<std::byte> early(100, std::byte{1}), word(100);
  const auto send = [&](std::uint64_t tag, std::span<const std::byte> payload) {
    return peer_.push({.kind = RecordKind::bytes, .tag = tag, .bytes = payload.size()}, payload.data(), payload.size());
  };
  ASSERT_TRUE(send(1, early));
  for (int turn = 0; turn < 2'000; ++turn) {
    Round& round = table_.open();
    lane_.receive(table_.add(round, {Message::Kind::receive, 3, 2, word.data(), word.size()}));
    ASSERT_TRUE(send(2, word)) << "turn " << turn;
    lane_.progress();
    ASSERT_EQ(round.incomplete, 0u);
    table_.close(round);
  }
  lane_.receive(table_.add(table_.open(), {Message::Kind::receive, 3, 1, word.data(), word.size()}));
  EXPECT_EQ(word, early);
}

/// Whatever it holds, what it has read to the end has room for the longest message.
TEST_F(ShmLane, HasRoomForTheLongestMessageBehindEarlyOnes) {
  for (const auto& [bytes, count, last] : std::vector<std::array<std::size_t, 3>>{
           {16'320, 2, kLargestInline}, {2'112, 15, 16'448}, {kLargestInline, 2, kLargestInline}}) {
    for (std::size_t begin = 0; begin < kRingBytes; begin += 64 * 11) {
      SCOPED_TRACE(::testing::Message() << count << " of " << bytes << " bytes at " << begin);
      in_ = std::make_unique<Ring>();
      RoundTable table;
      Lane lane(3, ends(), table, attachments_);
      RingWriter peer(in_.get());
      std::vector<std::byte> payload(kLargestInline, std::byte{9}), place(kLargestInline);
      const auto send = [&](std::uint64_t tag, std::size_t length) {
        return peer.push({.kind = RecordKind::bytes, .tag = tag, .bytes = length}, payload.data(), length);
      };
      for (std::size_t at = 0; at < begin; at += 64) {
        lane.receive(table.add(table.open(), {Message::Kind::receive, 3, 7, place.data(), 0}));
        ASSERT_TRUE(send(7, 0));
        lane.progress();
      }
      for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(send(i, bytes));
      while (lane.progress()) {
      }
      ASSERT_TRUE(send(count, last));
      lane.progress();
      lane.receive(table.add(table.open(), {Message::Kind::receive, 3, count, place.data(), last}));
      EXPECT_TRUE(std::equal(place.begin(), place.begin() + static_cast<std::ptrdiff_t>(last), payload.begin()));
    }
  }
}

TEST_F(ShmLane, SleepsNotWhileThereIsRoomForWhatItHolds) {
  std::vector<std::byte> data(16'000);
  for (int i = 0; i < 5; ++i)
    lane_.send(table_.add(table_.open(), {Message::Kind::send, 3, 5, data.data(), data.size()}));
  ASSERT_TRUE(lane_.is_held_up());
  EXPECT_FALSE(lane_.has_news());
  RingReader reader(out_.get());
  for (int i = 0; i < 2; ++i) reader.let_go(reader.next().number);
  EXPECT_TRUE(lane_.has_news());
  lane_.progress();
  EXPECT_FALSE(lane_.is_held_up());
  EXPECT_FALSE(lane_.has_news());
}

/// Of a long message it moves a part at a time, though the peer keeps up, and what is left does not let it sleep.
TEST_F(ShmLane, LeavesTheMutexBetweenPartsOfLongMessages) {
  std::vector<std::byte> theirs(5 << 20, std::byte{3}), ours(theirs.size());
  Lane::Ends with_more = ends();
  with_more.memory = theirs;
  Lane lane(3, with_more, table_, attachments_);
  Round& round = table_.open();
  lane.receive(table_.add(round, {Message::Kind::receive, 3, 5, ours.data(), ours.size()}));
  peer_.push({.kind = RecordKind::offer, .tag = 5, .bytes = ours.size(), .offset = kMemoryAt, .id = 1}, nullptr, 0);
  int parts = 0;
  for (; round.incomplete != 0 && parts < 100; ++parts) {
    ASSERT_TRUE(parts == 0 || lane.has_news());
    lane.progress();
  }
  EXPECT_EQ(parts, 5);
  EXPECT_EQ(ours, theirs);

  constexpr std::size_t kStaged = 200'000;
  Request& request = table_.add(table_.open(), {Message::Kind::receive, 3, 6, ours.data(), kStaged});
  lane.receive(request);
  peer_.push({.kind = RecordKind::staged_offer, .tag = 6, .bytes = kStaged, .id = 2}, nullptr, 0);
  std::jthread peer([&](const std::stop_token& stop) {
    StreamEnd end(&stream_, stream_data_.data(), stream_data_.size());
    for (std::size_t sent = 0; sent < kStaged && !stop.stop_requested();)
      sent += end.write(theirs.data() + sent, kStaged - sent);
  });
  std::size_t before = 0, most = 0;
  for (; request.state == Request::State::under_way; before = request.moved) {
    lane.progress();
    most = std::max(most, request.moved - before);
  }
  EXPECT_LE(most, stream_data_.size());
}

/// Or they would be waited for, at full speed, until the deadline.
TEST_F(ShmLane, RefusesPositionsThatCannotBe) {
  std::vector<std::byte> data(30'000);
  const std::string text = "a place in shared memory that cannot be";
  peer_.push({.kind = RecordKind::staged_offer, .tag = 5, .bytes = data.size(), .id = 1}, nullptr, 0);
  expect_message(data.size());
  stream_.head = stream_data_.size() + 1;
  expect_in(text, corrupt());
  {
    RoundTable table;
    stream_.head = 0;
    stream_.tail = 1;  // behind which nothing was written
    in_ = std::make_unique<Ring>();
    out_ = std::make_unique<Ring>();
    Lane lane(3, ends(), table, attachments_);
    lane.send(table.add(table.open(), {Message::Kind::send, 3, 5, data.data(), data.size()}));
    RingReader offers(out_.get());
    RingWriter(in_.get()).push({.kind = RecordKind::wanted, .id = offers.next().fields.id}, nullptr, 0);
    EXPECT_THROW(lane.progress(), Error);
  }
  RoundTable table;
  in_ = std::make_unique<Ring>();
  out_ = std::make_unique<Ring>();
  Lane lane(3, ends(), table, attachments_);
  const auto send = [&] { lane.send(table.add(table.open(), {Message::Kind::send, 3, 5, data.data(), 16'000})); };
  for (int i = 0; i < 5; ++i) send();
  ASSERT_TRUE(lane.is_held_up());
  out_->tail = std::uint64_t{1} << 40;
  EXPECT_THROW(lane.progress(), Error);
}

TEST_F(ShmLane, RefusesUnknownRecords) {
  peer_.push({.kind = static_cast<RecordKind>(99)}, nullptr, 0);
  expect_in("a record of unknown kind 99", corrupt());
}

/// Where the system seals memory files against execution, too, they have a seal more.
TEST(ShmMemoryFile, IsOpenedWithSealsThatTheSystemAdds) {
  const MemoryFile file = MemoryFile::create(8192);
  constexpr int kAgainstExecution = 0x20;
  if ((fcntl(file.descriptor(), F_GET_SEALS) & kAgainstExecution) == 0) GTEST_SKIP() << "a Linux before 6.3";
  EXPECT_EQ(MemoryFile::open(getpid(), file.descriptor(), 8192).bytes(), 8192u);
  EXPECT_THROW(MemoryFile::open(getpid(), file.descriptor(), 4096), Error) << "another size";
  const int open = memfd_create("tightwire", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(open, 8192), 0);
  EXPECT_THROW(MemoryFile::open(getpid(), open, 8192), Error) << "without seals";
  ::close(open);
}

TEST_F(ShmLane, WritesNothingOutsideTheRingWhateverItsReaderClaims) {
  struct Guarded {
    Ring ring;
    std::byte behind[2 * kRingBytes];
  };
  const auto guarded = std::make_unique<Guarded>();
  RingWriter writer(&guarded->ring);
  const std::vector<std::byte> payload(kLargestInline, std::byte{1});
  for (const std::uint64_t tail : {~std::uint64_t{0}, std::uint64_t{1} << 40, std::uint64_t{1}, std::uint64_t{65'537}})
    for (int i = 0; i < 20; ++i) {
      guarded->ring.tail = tail;
      writer.push({.kind = RecordKind::bytes, .bytes = payload.size()}, payload.data(), payload.size());
    }
  EXPECT_TRUE(std::all_of(std::begin(guarded->behind), std::end(guarded->behind),
                          [](std::byte each) { return each == std::byte{0}; }));
}

/// Payloads look like records, and messages go round the ring in every alignment.
TEST_F(ShmLane, TakesNoPayloadForARecord) {
  RingReader reader(out_.get());
  RingWriter writer(out_.get());
  std::uint64_t written = 0, read = 0;
  std::vector<std::uint64_t> payload;
  for (std::uint64_t turn = 0; turn < 20'000; ++turn) {
    payload.assign(turn * 37 % 2'000, 0);
    for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = (written + 8 * i) / 64 * 64 + 1 + 64 * (turn % 3);
    const std::size_t bytes = payload.size() * sizeof(std::uint64_t);
    ASSERT_TRUE(writer.push({.kind = RecordKind::bytes, .tag = turn, .bytes = bytes},
                            reinterpret_cast<const std::byte*>(payload.data()), bytes));
    written += record_length(bytes);
    while (reader.has_next()) {
      const RingReader::Entry entry = reader.next();
      ASSERT_TRUE(reader.is_sound());
      reader.let_go(entry.number);
      if (entry.fields.kind == RecordKind::skip) continue;
      ASSERT_EQ(entry.fields.tag, read++);
      ASSERT_EQ(std::memcmp(entry.payload, payload.data(), bytes), 0);
    }
    ASSERT_EQ(read, turn + 1);
  }
}

}  // namespace
}  // namespace tightwire::shm
