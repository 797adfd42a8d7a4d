// What every transport promises, in one process; UCX and MPI: multi/ucx_conformance_test.cpp, mpi/ranks_test.cpp.
#include <gtest/gtest.h>

#include <tightwire/testing/transport_conformance.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing::transport_conformance_test {
namespace {

/// Gives each rank, a thread, the next transport of its own, made together with those of the others.
class Opener {
 public:
  explicit Opener(int ranks) : ranks_(ranks) {}
  std::shared_ptr<Transport> open(int rank, std::size_t turn) {
    const std::lock_guard lock(mutex_);
    while (made_.size() <= turn) made_.push_back(local::make(ranks_));
    return std::move(made_[turn][static_cast<std::size_t>(rank)]);
  }

 private:
  int ranks_;
  std::mutex mutex_;
  std::vector<Transports> made_;
};

TEST(TransportConformance, OfTheInProcessTransport) {
  for (const int ranks : {2, 3})
    for (const TransportCheck& check : transport_checks()) {
      SCOPED_TRACE(check.name + ", " + std::to_string(ranks) + " ranks");
      Opener opener(ranks);
      run_all(ranks, [&](const std::shared_ptr<Transport>& rank) {
        std::size_t turn = 0;
        check.run([&] { return opener.open(rank->rank(), turn++); });
      });
    }
}

}  // namespace
}  // namespace tightwire::testing::transport_conformance_test
