#include <gtest/gtest.h>

#include <tightwire/testing/transport_conformance.hpp>

#include "ucx_support.hpp"

namespace tightwire::testing::ucx_conformance_test {
namespace {

TEST(UcxConformance, OnEveryNetwork) {
  for (const Network& network : networks())
    for (const TransportCheck& check : transport_checks()) {
      SCOPED_TRACE(network.name + ": " + check.name);
      const auto results = run_ranks(3, [&](const Rendezvous& rendezvous) {
        int turn = 0;
        check.run([&]() -> std::shared_ptr<Transport> {
          Rendezvous own = rendezvous;
          own.address += std::to_string(turn++);
          return ucx::open(own, network.options);
        });
        return 0;
      });
      EXPECT_EQ(complaints(results), "");
    }
}

}  // namespace
}  // namespace tightwire::testing::ucx_conformance_test
