#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/local_transport.hpp>

#include "faulty_transport.hpp"

namespace tightwire::testing {

using Transports = std::vector<std::shared_ptr<Transport>>;

/// How the work of one rank ended.
struct Outcome {
  std::optional<Errc> error;
  std::string message;
};

/// Every rank failed with that error, and said that.
inline void expect_everywhere(const std::vector<Outcome>& outcomes, Errc error, const std::string& part) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Outcome& outcome = outcomes[rank];
    EXPECT_TRUE(outcome.error && *outcome.error == error) << "rank " << rank << ": " << outcome.message;
    EXPECT_NE(outcome.message.find(part), std::string::npos) << "rank " << rank << ": " << outcome.message;
  }
}

/// Ends the test program if it lives too long: a hang must not hang the suite.
class HangLimit {
 public:
  explicit HangLimit(unsigned seconds = 120) { ::alarm(seconds); }
  HangLimit(const HangLimit&) = delete;
  HangLimit& operator=(const HangLimit&) = delete;
  ~HangLimit() { ::alarm(0); }
};

/// Runs `body` once per rank, each on a thread of its own, and says how each ended. Unlike local::run it tells nobody
/// of an error: what the other ranks learn, they learn from the library.
inline std::vector<Outcome> run_each(const Transports& transports,
                                     const std::function<void(const std::shared_ptr<Transport>&)>& body) {
  const HangLimit limit;
  std::vector<Outcome> outcomes(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(transports[rank]);
      } catch (const Error& error) {
        outcomes[rank] = {error.code(), error.what()};
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": not a tightwire::Error: " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// As above, and every rank must end well.
inline void run_all(const Transports& transports, const std::function<void(const std::shared_ptr<Transport>&)>& body) {
  const std::vector<Outcome> outcomes = run_each(transports, body);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_FALSE(outcomes[rank].error) << "rank " << rank << ": " << outcomes[rank].message;
}
inline void run_all(int ranks, const std::function<void(const std::shared_ptr<Transport>&)>& body) {
  run_all(local::make(ranks), body);
}

/// Transports over which every rank's messages suffer what its script says.
inline Transports faulty(int ranks, const std::function<FaultyTransport::Script(int rank)>& script) {
  Transports transports;
  for (std::shared_ptr<Transport>& inner : local::make(ranks)) {
    const int rank = inner->rank();
    transports.push_back(std::make_shared<FaultyTransport>(std::move(inner), script(rank)));
  }
  return transports;
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not contain \"" << part << "\"";
}

/// The statement throws tightwire::Error with this code and a text that contains this part.
#define EXPECT_ERROR(statement, errc, part)                                              \
  try {                                                                                  \
    statement;                                                                           \
    ADD_FAILURE() << #statement << " throws nothing";                                    \
  } catch (const ::tightwire::Error& error_) {                                           \
    EXPECT_EQ(static_cast<int>(error_.code()), static_cast<int>(errc)) << error_.what(); \
    EXPECT_TRUE(::tightwire::testing::contains(error_.what(), part));                    \
  }

}  // namespace tightwire::testing
