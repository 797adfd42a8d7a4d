#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tightwire/error.hpp>
#include <tightwire/rendezvous.hpp>

namespace tightwire::testing {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

inline milliseconds since(SteadyClock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
}

/// A private directory that goes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tightwire-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// Ends the test program when a test takes longer: a hang must not hang the suite.
class HardLimit {
 public:
  explicit HardLimit(unsigned seconds) { ::alarm(seconds); }
  HardLimit(const HardLimit&) = delete;
  HardLimit& operator=(const HardLimit&) = delete;
  ~HardLimit() { ::alarm(0); }
};

inline Rendezvous job(int rank, int size, const std::string& address, milliseconds timeout = milliseconds(8000)) {
  return Rendezvous{rank, size, address, "key of the test", timeout};
}

/// What one rank got from joining: a membership, or an error.
struct JoinOutcome {
  std::unique_ptr<Membership> membership;
  Errc code = Errc::ok;
  std::string message;
  milliseconds took{0};
};

inline JoinOutcome outcome_of(const std::function<std::unique_ptr<Membership>()>& join) {
  const auto begin = std::chrono::steady_clock::now();
  JoinOutcome outcome;
  try {
    outcome.membership = join();
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.message = error.what();
  }
  outcome.took = since(begin);
  return outcome;
}

inline void expect_mentions(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

inline std::string blob_of(int rank) { return "blob of rank " + std::to_string(rank); }

/// Joins all the given ranks at once, each in a thread of its own.
inline std::vector<JoinOutcome> join_all(const std::vector<Rendezvous>& ranks) {
  std::vector<JoinOutcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back(
        [&, i] { outcomes[i] = outcome_of([&] { return Membership::join(ranks[i], blob_of(ranks[i].rank)); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::vector<Rendezvous> whole_job(int size, const std::string& address,
                                         milliseconds timeout = milliseconds(8000)) {
  std::vector<Rendezvous> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(job(rank, size, address, timeout));
  return ranks;
}

/// All ranks leave at once, as a program does at its end.
inline void leave_all(std::vector<JoinOutcome>& outcomes, milliseconds limit = milliseconds(5000)) {
  std::vector<std::thread> threads;
  for (JoinOutcome& outcome : outcomes) {
    threads.emplace_back([&outcome, limit] {
      if (outcome.membership) outcome.membership->leave(limit);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The loss a membership notices within the limit, or nothing.
inline std::optional<Membership::Loss> wait_for_loss(const Membership& membership, milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < until) {
    if (auto loss = membership.loss()) return loss;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return membership.loss();
}

}  // namespace tightwire::testing
