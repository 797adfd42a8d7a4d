#include <sys/socket.h>

#include <atomic>
#include <fstream>

#include "rendezvous/channel.hpp"
#include "rendezvous/handshake.hpp"
#include "rendezvous/proof.hpp"
#include "rendezvous/socket.hpp"
#include "rendezvous/wire.hpp"
#include "rendezvous_support.hpp"

namespace tightwire::testing::rendezvous_strangers_test {
namespace {
using rendezvous::Channel;
using rendezvous::Descriptor;
using rendezvous::FrameType;
using rendezvous::SocketAddress;

SocketAddress free_place() { return rendezvous::local_address(rendezvous::listen_at(rendezvous::loopback(0))); }

Descriptor connect(const SocketAddress& place) {
  std::string problem;
  for (int attempt = 0; attempt < 200; ++attempt) {
    Descriptor socket = rendezvous::connect_to(place, Clock::now() + milliseconds(1000), problem);
    if (socket) return socket;
    std::this_thread::sleep_for(milliseconds(5));
  }
  ADD_FAILURE() << problem;
  return {};
}

void send_bytes(const Descriptor& socket, const std::string& bytes) {
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

/// Whether the other side closes the connection within the limit.
bool is_closed_within(const Descriptor& socket, milliseconds limit) {
  Channel channel{Descriptor::make([&] { return ::dup(socket.get()); }), 1024};
  const auto until = Clock::now() + limit;
  while (!channel.ended() && Clock::now() < until) {
    channel.receive();
    while (channel.next()) {
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return channel.ended();
}

/// A job of three of which rank 2 comes only when the test says so; the strangers come in between.
class JobUnderWay {
 public:
  JobUnderWay() : place_(free_place()) {
    for (int rank = 0; rank < 2; ++rank) start(rank);
  }
  const SocketAddress& place() const { return place_; }
  std::string address() const { return "tcp://" + place_.text(); }

  void expect_complete_within(milliseconds limit) {
    const auto begin = Clock::now();
    start(2);
    for (std::thread& thread : threads_) thread.join();
    EXPECT_LT(since(begin), limit);
    for (const JoinOutcome& outcome : outcomes_) {
      ASSERT_TRUE(outcome.membership) << outcome.message;
      EXPECT_EQ(outcome.membership->blobs()[2], blob_of(2));
    }
    leave_all(outcomes_);
  }

 private:
  void start(int rank) {
    threads_.emplace_back([this, rank] {
      outcomes_[static_cast<std::size_t>(rank)] =
          outcome_of([&] { return Membership::join(job(rank, 3, address()), blob_of(rank)); });
    });
  }

  SocketAddress place_;
  std::vector<JoinOutcome> outcomes_{3};
  std::vector<std::thread> threads_;
};

std::string hello_of(std::uint32_t rank) {
  return rendezvous::encode({rendezvous::kProtocolVersion, rank, 3, std::string(32, 'n')});
}

TEST(Strangers, GarbageIsDroppedAtOnceAndDisturbsNobody) {
  const HardLimit limit(20);
  JobUnderWay under_way;
  std::string huge;
  rendezvous::put_u32(huge, 0xffffffffU);
  const std::vector<std::string> openings{
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
      huge + "\x01",
      std::string(100'000, '\xff'),
      *rendezvous::encode_frame(FrameType::hello, "too short"),
      *rendezvous::encode_frame(FrameType::hello, std::string(52, 'x')),
      *rendezvous::encode_frame(FrameType::blob, "not yet"),
      *rendezvous::encode_frame(FrameType::proof, std::string(40, 'p')),
      *rendezvous::encode_frame(FrameType::hello, hello_of(2)) +
          *rendezvous::encode_frame(FrameType::proof, std::string(40, 'p')),
      *rendezvous::encode_frame(FrameType::hello, hello_of(2)) + *rendezvous::encode_frame(FrameType::proof, {}),
      *rendezvous::encode_frame(FrameType::hello, hello_of(2)) +
          *rendezvous::encode_frame(FrameType::hello, hello_of(2)),
  };
  for (std::size_t i = 0; i < openings.size(); ++i) {
    const Descriptor socket = connect(under_way.place());
    static_cast<void>(::send(socket.get(), openings[i].data(), openings[i].size(), MSG_NOSIGNAL));
    EXPECT_TRUE(is_closed_within(socket, milliseconds(1000))) << "opening " << i;
  }
  under_way.expect_complete_within(milliseconds(1000));
}

TEST(Strangers, ScannersSilentAndSlowOnesDisturbNobody) {
  const HardLimit limit(20);
  JobUnderWay under_way;
  std::vector<Descriptor> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect(under_way.place()));
    connect(under_way.place()).reset();
  }
  std::atomic<bool> stop{false};
  std::thread slow([&] {
    const Descriptor socket = connect(under_way.place());
    const std::string hello = *rendezvous::encode_frame(FrameType::hello, hello_of(2));
    for (std::size_t i = 0; i < hello.size() && !stop; ++i) {
      static_cast<void>(::send(socket.get(), &hello[i], 1, MSG_NOSIGNAL));  // fails once the job is complete
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  std::this_thread::sleep_for(milliseconds(50));
  under_way.expect_complete_within(milliseconds(1000));
  stop = true;
  slow.join();
}

TEST(Strangers, ACrowdOfSilentOnesOnlyDelays) {
  const HardLimit limit(20);
  JobUnderWay under_way;
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect(under_way.place()));
  under_way.expect_complete_within(milliseconds(5000));
}

TEST(Strangers, WrongKeyIsTurnedAwayAndToldWhy) {
  const HardLimit limit(20);
  JobUnderWay under_way;
  Rendezvous wrong = job(2, 3, under_way.address(), milliseconds(300));
  wrong.key = "another key";
  const auto outcome = outcome_of([&] { return Membership::join(wrong, "intruder"); });
  EXPECT_EQ(outcome.code, Errc::timeout);
  expect_mentions(outcome.message, {"does not have our job key"});
  under_way.expect_complete_within(milliseconds(1000));
}

TEST(Strangers, WrongKeyIsNamedToTheOtherSideToo) {
  const HardLimit limit(20);
  const std::string address = "tcp://" + free_place().text();
  auto ranks = whole_job(2, address, milliseconds(400));
  ranks[1].key = "another key";
  const auto outcomes = join_all(ranks);
  EXPECT_EQ(outcomes[0].code, Errc::timeout);
  expect_mentions(outcomes[0].message, {"rank 1 missing; present: 0", "claims to be rank 1 with another job key"});
}

TEST(Strangers, WhoDoesNotKnowTheFileCannotJoin) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  JoinOutcome zero;
  std::thread thread([&] {
    zero = outcome_of(
        [&] { return Membership::join(job(0, 2, "local://" + directory.path("job"), milliseconds(300)), {}); });
  });
  // The port may be found by a scan; the job key alone does not do.
  std::string text;
  while (text.find("end") == std::string::npos) {
    std::ifstream file(directory.path("job"));
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto at = text.find("127.0.0.1:");
  const std::string place = text.substr(at, text.find('\n', at) - at);
  const auto outcome = outcome_of([&] { return Membership::join(job(1, 2, "tcp://" + place, milliseconds(200)), {}); });
  thread.join();
  EXPECT_EQ(outcome.code, Errc::timeout);
  EXPECT_EQ(zero.code, Errc::timeout);
  expect_mentions(zero.message, {"another job key"});
}

TEST(Strangers, AServerThatEchoesIsNoRankZero) {
  const HardLimit limit(20);
  const Descriptor listener = rendezvous::listen_at(rendezvous::loopback(0));
  const std::string place = rendezvous::local_address(listener).text();
  std::atomic<bool> stop{false};
  std::thread echo([&] {
    std::vector<Descriptor> taken;
    std::array<char, 4096> buffer;
    while (!stop) {
      SocketAddress from;
      if (Descriptor socket = rendezvous::accept_connection(listener, from)) taken.push_back(std::move(socket));
      for (const Descriptor& socket : taken) {
        const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (count > 0) ::send(socket.get(), buffer.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL);
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const auto outcome = outcome_of([&] { return Membership::join(job(1, 2, "tcp://" + place, milliseconds(300)), {}); });
  stop = true;
  echo.join();
  EXPECT_EQ(outcome.code, Errc::timeout);
  expect_mentions(outcome.message, {"does not answer as a rank 0", place});
}

TEST(Proof, FailsWithAnythingAltered) {
  const rendezvous::Transcript said{hello_of(1), hello_of(0)};
  const std::string proof = rendezvous::encode_proof("key", said, "here");
  EXPECT_EQ(rendezvous::check_proof("key", said, proof), "here");
  EXPECT_FALSE(rendezvous::check_proof("Key", said, proof));
  EXPECT_FALSE(rendezvous::check_proof("key", {said.welcome, said.hello}, proof));
  EXPECT_FALSE(rendezvous::check_proof("key", said, {}));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    std::string altered = proof;
    altered[i] = static_cast<char>(altered[i] ^ 1);
    EXPECT_FALSE(rendezvous::check_proof("key", said, altered)) << "byte " << i;
  }
  for (std::size_t i = 0; i < said.hello.size(); ++i) {
    rendezvous::Transcript altered = said;
    altered.hello[i] = static_cast<char>(altered.hello[i] ^ 1);
    EXPECT_FALSE(rendezvous::check_proof("key", altered, proof)) << "byte " << i;
  }
}

TEST(Proof, OfOneSideIsNoneOfTheOther) {
  const rendezvous::Transcript said{hello_of(1), hello_of(0)};
  const std::string verdict = rendezvous::encode_verdict("key", said, {Errc::mismatch, "no"});
  const auto checked = rendezvous::check_verdict("key", said, verdict);
  ASSERT_TRUE(checked);
  EXPECT_EQ(checked->code, Errc::mismatch);
  EXPECT_EQ(checked->text, "no");
  EXPECT_FALSE(rendezvous::check_proof("key", said, verdict));
  EXPECT_FALSE(rendezvous::check_verdict("key", said, rendezvous::encode_proof("key", said, "here")));
  EXPECT_FALSE(rendezvous::check_verdict("other", said, verdict));
}

TEST(Proof, IsHmacSha256) {
  // RFC 4231, test case 2.
  EXPECT_EQ(rendezvous::to_hex(rendezvous::keyed_digest("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_NE(rendezvous::random_bytes(32), rendezvous::random_bytes(32));
}

TEST(Connecting, NeverTakesItselfForAnother) {
  const HardLimit limit(20);
  // For the near end the kernel goes through its even free ports, and so comes to the far end's own number.
  SocketAddress nobody = free_place();
  while (nobody.port() % 2 != 0) {
    nobody.set_port(static_cast<std::uint16_t>(nobody.port() - 1));
    if (outcome_of([&] { return rendezvous::listen_at(nobody), nullptr; }).code != Errc::ok) nobody = free_place();
  }
  std::string problem;
  for (int attempt = 0; attempt < 40'000; ++attempt) {
    const Descriptor socket = rendezvous::connect_to(nobody, Clock::now() + milliseconds(1000), problem);
    ASSERT_FALSE(socket) << "attempt " << attempt;
    ASSERT_NE(problem.find("Connection refused"), std::string::npos) << problem;
  }
}

/// Two ends of a connection within the test.
std::pair<Descriptor, Descriptor> make_pair_of_sockets() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor::make([&] { return ends[0]; }), Descriptor::make([&] { return ends[1]; })};
}

TEST(ControlChannel, TakesFramesInPiecesAndKeepsThoseBeforeTheEnd) {
  auto [ours, theirs] = make_pair_of_sockets();
  Channel channel(std::move(ours), 100);
  const std::string bytes =
      *rendezvous::encode_frame(FrameType::blob, "one") + *rendezvous::encode_frame(FrameType::lost, {});
  std::vector<rendezvous::Frame> frames;
  for (const char byte : bytes) {
    send_bytes(theirs, std::string(1, byte));
    channel.receive();
    while (auto frame = channel.next()) frames.push_back(*frame);
  }
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].body, "one");
  EXPECT_EQ(frames[1].type, FrameType::lost);
  send_bytes(theirs, bytes + "incomplete");
  theirs.reset();
  channel.receive();
  EXPECT_TRUE(channel.ended());
  EXPECT_TRUE(channel.next());
  EXPECT_TRUE(channel.next());
  EXPECT_FALSE(channel.next());
  EXPECT_EQ(channel.end_reason(), "its process ended");
}

TEST(ControlChannel, EndsAtAFrameAboveTheLimit) {
  auto [ours, theirs] = make_pair_of_sockets();
  Channel channel(std::move(ours), 100);
  send_bytes(theirs, *rendezvous::encode_frame(FrameType::blob, std::string(101, 'x')));
  channel.receive();
  EXPECT_FALSE(channel.next());
  EXPECT_TRUE(channel.ended());
  expect_mentions(channel.end_reason(), {"101 bytes", "at most 100"});
}

TEST(ControlChannel, SendingToAClosedEndRaisesNoSignal) {
  auto [ours, theirs] = make_pair_of_sockets();
  Channel channel(std::move(ours), 100);
  theirs.reset();
  channel.send(FrameType::blob, "x");
  channel.receive();
  EXPECT_TRUE(channel.ended());
}

}  // namespace
}  // namespace tightwire::testing::rendezvous_strangers_test
