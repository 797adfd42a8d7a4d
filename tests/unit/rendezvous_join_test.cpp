#include "rendezvous_support.hpp"

namespace tightwire {
namespace {

using namespace tightwire::testing;

class JoinSize : public ::testing::TestWithParam<int> {};

TEST_P(JoinSize, GivesEveryRankTheBlobOfEveryRank) {
  const HardLimit limit(20);
  const TemporaryDirectory directory;
  const int size = GetParam();
  for (const char* form : {"file://", "local://"}) {
    auto outcomes = join_all(whole_job(size, form + directory.path("job")));
    for (int rank = 0; rank < size; ++rank) {
      const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(outcome.membership) << outcome.message;
      EXPECT_EQ(outcome.membership->rank(), rank);
      EXPECT_EQ(outcome.membership->size(), size);
      ASSERT_EQ(outcome.membership->blobs().size(), static_cast<std::size_t>(size));
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_EQ(outcome.membership->blobs()[static_cast<std::size_t>(peer)], blob_of(peer));
      }
    }
    EXPECT_TRUE(directory.is_empty()) << "the rendezvous file stays behind";
    leave_all(outcomes);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, JoinSize, ::testing::Values(1, 2, 4, 8, 32));

}  // namespace
}  // namespace tightwire
