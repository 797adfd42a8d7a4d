#include <gtest/gtest.h>

#include <tightwire/shm.hpp>
#include <tightwire/testing/transport_conformance.hpp>

#include "process_ranks.hpp"

namespace tightwire::testing::shm_conformance_test {
namespace {

TEST(ShmConformance, WithFewAndManyRanks) {
  for (const int ranks : {2, 3, 7})
    for (const TransportCheck& check : transport_checks()) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks: " + check.name);
      const auto results = run_ranks(ranks, [&](const Rendezvous& rendezvous) {
        int turn = 0;
        check.run([&]() -> std::shared_ptr<Transport> {
          Rendezvous own = rendezvous;
          own.address += std::to_string(turn++);
          return shm::open(own);
        });
        return 0;
      });
      EXPECT_EQ(complaints(results), "");
    }
}

}  // namespace
}  // namespace tightwire::testing::shm_conformance_test
