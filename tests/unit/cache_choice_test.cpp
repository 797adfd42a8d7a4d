#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include <tightwire/collective/cache_choice.hpp>

namespace tightwire::testing::cache_choice_test {
namespace {

using tightwire::CacheChoice;

/// What it chose for each of `uses` reductions that take so long.
std::vector<bool> choices(CacheChoice& choice, int uses, double past_cache, double cached) {
  std::vector<bool> all;
  for (int use = 0; use < uses; ++use) {
    all.push_back(choice.past_cache());
    choice.took(choice.past_cache() ? past_cache : cached);
  }
  return all;
}
int count(const std::vector<bool>& all, int from, int to) {
  return static_cast<int>(std::count(all.begin() + from, all.begin() + to, true));
}

TEST(CacheChoice, TriesBothThenStaysWithTheFaster) {
  for (const auto& [past_cache, cached, expected] : {std::tuple{1.0, 2.0, true}, {2.0, 1.0, false}, {1.0, 1.0, true}}) {
    CacheChoice choice;
    const std::vector<bool> all = choices(choice, 500, past_cache, cached);
    EXPECT_EQ(count(all, 0, 8), 4) << "both are tried alike";
    EXPECT_EQ(count(all, 8, 500), expected ? 492 : 0);
  }
}

TEST(CacheChoice, OneSlowReductionDecidesNothing) {
  CacheChoice choice;
  for (int use = 0; use < 8; ++use) choice.took(use == 0 ? 100.0 : choice.past_cache() ? 1.0 : 2.0);
  EXPECT_TRUE(choice.past_cache());
}

TEST(CacheChoice, FollowsAMachineThatChanges) {
  CacheChoice choice;
  choices(choice, 512, 1.0, 2.0);
  const std::vector<bool> all = choices(choice, 512, 2.0, 1.0);
  EXPECT_EQ(count(all, 8, 512), 0) << "what was measured before the change is forgotten";
}

}  // namespace
}  // namespace tightwire::testing::cache_choice_test
