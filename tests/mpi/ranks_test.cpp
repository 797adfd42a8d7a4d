// Every rank of an mpirun runs all of this, in the same order.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_codecs.hpp>
#include <tightwire/mpi.hpp>
#include <tightwire/testing/transport_conformance.hpp>

#include "transports/mpi/mpi_transport.hpp"
#include "unit/support/steps.hpp"

namespace tightwire::testing {
namespace {

int rank_of(MPI_Comm communicator) {
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}
int size_of(MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  return size;
}
bool any_thread() {
  int level = 0;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}
std::shared_ptr<Transport> open_world() { return mpi::adopt(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(20)}); }

/// One whose messages travel in many pieces, as those beyond a GiB do.
std::shared_ptr<Transport> open_world_in_pieces() {
  constexpr std::chrono::seconds kLimit{20};
  MPI_Comm ours = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &ours);
  MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN);
  auto transport = std::make_shared<mpi::MpiTransport>(ours, kLimit, std::size_t{1} << 16);
  transport->greet(Clock::now() + kLimit);
  return transport;
}

SessionOptions two_shot_within(std::chrono::milliseconds timeout) {
  SessionOptions options;
  options.plan.algorithm = Algorithm::two_shot;
  options.timeout = timeout;
  return options;
}

/// The same bytes on every rank of MPI_COMM_WORLD.
bool same_everywhere(const std::vector<std::byte>& bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::uint64_t mine = fingerprint(text);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size_of(MPI_COMM_WORLD)));
  MPI_Allgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
  return std::all_of(all.begin(), all.end(), [&](std::uint64_t each) { return each == mine; });
}

class OverMpi : public ::testing::Test {
 protected:
  void SetUp() override { MPI_Barrier(MPI_COMM_WORLD); }
  void TearDown() override { MPI_Barrier(MPI_COMM_WORLD); }
  HangLimit limit_{60};
};

void conforms(const OpenTransport& open) {
  for (const TransportCheck& check : transport_checks(any_thread())) {
    SCOPED_TRACE(check.name);
    try {
      check.run(open);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank_of(MPI_COMM_WORLD) << ": " << check.name << ": " << error.what();
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_F(OverMpi, ConformsToWhatTransportsPromise) { conforms(open_world); }
TEST_F(OverMpi, ConformsWithMessagesInPieces) { conforms(open_world_in_pieces); }

TEST_F(OverMpi, SessionsHaveTheBitsOfTheInProcessTransport) {
  const int ranks = size_of(MPI_COMM_WORLD);
  const auto transport = open_world();
  for (const Algorithm algorithm : {Algorithm::two_shot, Algorithm::one_shot}) {
    Steps steps;
    steps.steps = 2;
    steps.options.plan.algorithm = algorithm;
    steps.options.timeout = std::chrono::seconds(20);
    steps.model.push_back({"1 %", {50'000}, ElementType::f32, TopK{.ratio = 0.01}});
    steps.model.push_back({"factors", {200, 100}, ElementType::f32, PowerSgd{.rank = 4}});
    steps.model.push_back({"large", {200'003}, ElementType::f32, Int8{}});
    const auto in_process = steps.run(ranks);
    ASSERT_TRUE(all_equal(in_process));
    const auto session = sealed_session(transport, steps.model, steps.options);
    Gradients gradients(steps.model);
    std::vector<std::byte> bytes;
    for (int step = 0; step < steps.steps; ++step) {
      gradients.fill_wide(Steps::seed(transport->rank(), step), steps.exponents);
      session->all_reduce(gradients.pointers());
      ASSERT_TRUE(session->commit());
      const auto now = gradients.bytes();
      bytes.insert(bytes.end(), now.begin(), now.end());
    }
    EXPECT_TRUE(bytes == in_process[0]) << "the bytes are those of the in-process transport";
    EXPECT_TRUE(same_everywhere(bytes));
  }
}

TEST_F(OverMpi, BucketsInTheBackgroundWhileTheProgramUsesMpiItself) {
  if (!any_thread()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  Steps steps{.steps = 5, .reduce = in_random_order(3)};
  steps.options.bucket_bytes = 4'000;
  const auto in_process = steps.run(size_of(MPI_COMM_WORLD));
  const auto transport = open_world();
  const auto session = sealed_session(transport, steps.model, steps.options);
  Gradients gradients(steps.model);
  std::vector<std::byte> bytes;
  for (int step = 0; step < steps.steps; ++step) {
    gradients.fill_wide(Steps::seed(transport->rank(), step), steps.exponents);
    std::thread other([] {
      for (int i = 0; i < 100; ++i) MPI_Barrier(MPI_COMM_WORLD);
    });
    steps.reduce(*session, gradients);
    other.join();
    ASSERT_TRUE(session->commit());
    const auto now = gradients.bytes();
    bytes.insert(bytes.end(), now.begin(), now.end());
  }
  EXPECT_TRUE(bytes == in_process[0]);
}

TEST_F(OverMpi, ThreadsAreRefusedWhereMpiForbidsThem) {
  if (any_thread()) GTEST_SKIP() << "needs less than MPI_THREAD_MULTIPLE";
  const auto transport = open_world();
  EXPECT_TRUE(contains(transport->describe(), "one thread"));
  std::thread([&] { EXPECT_ERROR(transport->idle(Clock::now()), Errc::unsupported, "MPI_THREAD_MULTIPLE"); }).join();
  auto session = sealed_session(transport, {{"a", {4000}, ElementType::f32, Int8{}}});
  std::vector<float> gradient(4000, 1.0f);
  void* const pointer = gradient.data();
  EXPECT_ERROR(session->start(0, {&pointer, 1}), Errc::unsupported, "start works in the background");
  session->all_reduce(gradient);  // nothing was started, and the Session goes on
  session->run(0, gradient.data());
  EXPECT_TRUE(session->commit());
}

/// What another thread could not do, since it may not call MPI, the owner does with its next call: peers hear of it,
/// and receives are taken back.
TEST_F(OverMpi, GivingUpOnAThreadThatMayNotCallMpi) {
  if (any_thread()) GTEST_SKIP() << "needs less than MPI_THREAD_MULTIPLE";
  for (const bool takes_memory_away : {true, false}) {
    const auto transport = open_world();
    std::vector<std::byte> place(100, std::byte{1});
    const int giver = 0, other = 1;
    const Message message{.kind = Message::Kind::receive,
                          .peer = transport->rank() == giver ? other : giver,
                          .tag = 5,
                          .data = place.data(),
                          .bytes = place.size()};
    const Ticket ticket = transport->post({&message, 1});
    MPI_Barrier(MPI_COMM_WORLD);
    if (transport->rank() == giver) {
      std::thread([&] { transport->abort("of reason 12"); }).join();
      if (takes_memory_away)
        transport->detach(place);
      else
        EXPECT_ERROR(transport->done(ticket), Errc::peer_lost, "of reason 12");
    } else {
      const TimePoint until = Clock::now() + std::chrono::seconds(10);
      const auto wait = [&] {
        while (!transport->done(ticket) && Clock::now() < until) transport->idle(until);
      };
      EXPECT_ERROR(wait(), Errc::peer_lost, "of reason 12");
    }
    MPI_Barrier(MPI_COMM_WORLD);  // before which no transport ends
  }
}

/// The memory of its messages stays, as MPI writes to it for ever.
TEST_F(OverMpi, ATransportThatEndsOnAThreadThatMayNotCallMpi) {
  if (any_thread()) GTEST_SKIP() << "needs less than MPI_THREAD_MULTIPLE";
  auto transport = mpi::adopt(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds(300)});
  const auto began = std::chrono::steady_clock::now();
  std::thread([&] { transport.reset(); }).join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10)) << "it waited for what it may not ask";
  EXPECT_EQ(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);  // MPI is as it was
}

TEST(WordsOverMpi, WhatIsNoneIsRefused) {
  const auto read = [](mpi::Control control, std::size_t arrived) {
    mpi::ControlWithReason word{};
    word.control = control;
    word.reason.fill('x');
    return std::string(mpi::read_word(3, 5, word, arrived));
  };
  using Kind = mpi::Control::Kind;
  constexpr std::size_t kWord = sizeof(mpi::Control);
  EXPECT_EQ(read({.kind = Kind::message, .bytes = 1'000'000}, kWord), "");
  EXPECT_EQ(read({.kind = Kind::hello, .tag = mpi::kProtocol, .bytes = 77}, kWord), "");
  EXPECT_EQ(read({.kind = Kind::abort, .bytes = 4}, kWord + 4), "xxxx");
  EXPECT_EQ(read({.kind = Kind::abort, .bytes = mpi::Control::kLongestReason}, sizeof(mpi::ControlWithReason)).size(),
            mpi::Control::kLongestReason);
  EXPECT_ERROR(read({}, kWord - 1), Errc::corrupt, "rank 5 sent what is no word");
  EXPECT_ERROR(read({.magic = 0x706d'7774}, kWord), Errc::corrupt, "rank 5 sent what is no word");
  for (const std::uint32_t kind : {0U, 5U, 1U << 31U})
    EXPECT_ERROR(read({.kind = static_cast<Kind>(kind)}, kWord), Errc::corrupt,
                 "rank 5 sent a word of an unknown kind");
  EXPECT_ERROR(read({.kind = Kind::hello, .tag = 2}, kWord), Errc::mismatch, "rank 3 speaks version 1");
  EXPECT_ERROR(read({.kind = Kind::abort, .bytes = 5}, kWord + 4), Errc::corrupt, "4 bytes of reason, which says 5");
  EXPECT_ERROR(read({.kind = Kind::abort, .bytes = std::uint64_t{1} << 60}, kWord), Errc::corrupt, "0 bytes of reason");
  EXPECT_ERROR(read({.kind = Kind::goodbye}, kWord + 1), Errc::corrupt, "1 bytes of reason, which says 0");
}

TEST_F(OverMpi, PartOfTheRanksHasATransportOfItsOwn) {
  MPI_Comm part = MPI_COMM_NULL;
  const int rank = rank_of(MPI_COMM_WORLD);
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, -rank, &part);
  const std::shared_ptr<Transport> transport = mpi::adopt(part);
  EXPECT_EQ(transport->size(), size_of(part));
  EXPECT_EQ(transport->rank(), rank_of(part));
  const auto session = sealed_session(transport, {{"a", {4000}, ElementType::f32, Codec{}}});
  std::vector<float> gradient(4000, static_cast<float>(rank));
  session->all_reduce(gradient);
  const float expected = rank == 0 ? 0.0f : static_cast<float>(size_of(MPI_COMM_WORLD)) / 2.0f;
  EXPECT_EQ(gradient[3999], expected);
  MPI_Comm_free(&part);
}

TEST_F(OverMpi, MisuseIsRefused) {
  EXPECT_ERROR(mpi::adopt(MPI_COMM_NULL), Errc::invalid_argument, "MPI_COMM_NULL");
  EXPECT_ERROR(mpi::adopt(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds(0)}), Errc::invalid_argument,
               "timeout");
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  const int mine = rank_of(MPI_COMM_WORLD) % 2;
  MPI_Comm_split(MPI_COMM_WORLD, mine, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - mine, 7, &between);
  EXPECT_ERROR(mpi::adopt(between), Errc::invalid_argument, "an intercommunicator");
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
  struct OtherMpi;
  if constexpr (std::is_pointer_v<MPI_Comm>) {
    EXPECT_ERROR(mpi::adopt(0x44000000), Errc::invalid_argument, "another MPI implementation");  // MPICH's world
  } else {
    EXPECT_ERROR(mpi::adopt(static_cast<OtherMpi*>(nullptr)), Errc::invalid_argument, "another MPI implementation");
  }
}

TEST_F(OverMpi, ARankThatDoesNotAdoptIsMissedInTime) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);  // a collective is left under way on it
  const int last = size_of(copy) - 1;
  if (rank_of(copy) != last) {
    const TimePoint began = Clock::now();
    EXPECT_ERROR(mpi::adopt(copy, {.timeout = std::chrono::milliseconds(300)}), Errc::timeout, "in time");
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
  }
}

TEST_F(OverMpi, ARankThatStandsStillIsNamed) {
  const auto transport = open_world();
  auto session = sealed_session(transport, {{"a", {4000}, ElementType::f32, Int8{}}},
                                two_shot_within(std::chrono::milliseconds(300)));
  const int last = transport->size() - 1;
  if (transport->rank() == last) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    return;
  }
  std::vector<float> gradient(4000, 1.0f);
  try {
    session->all_reduce(gradient);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {  // the first that notices tells the others
    EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::peer_lost) << error.what();
    EXPECT_TRUE(contains(error.what(), "made no progress for 300 ms; waiting for rank"));
    EXPECT_TRUE(contains(error.what(), std::to_string(last)));
  }
}

}  // namespace
}  // namespace tightwire::testing

/// Arguments: those of GoogleTest, and --single for a program that asks MPI for no threads.
int main(int count, char** words) {
  int provided = 0;
  const bool single = count > 1 && std::string(words[count - 1]) == "--single";
  MPI_Init_thread(&count, &words, single ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &provided);
  ::testing::InitGoogleTest(&count, words);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
