// Many Sessions of one transport: whatever is under way at once, messages of two never meet.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tightwire/core_session.hpp>

#include "support/ranks.hpp"

namespace tightwire::testing::session_channels_test {
namespace {

SessionOptions short_wait() {
  SessionOptions options;
  options.timeout = std::chrono::seconds(10);
  return options;
}

/// A Session of one parameter of `elements` elements, and its gradient.
struct One {
  One(const std::shared_ptr<Transport>& transport, std::size_t elements)
      : gradient(elements, static_cast<float>(transport->rank())), session(transport, short_wait()) {
    session.add("p", {static_cast<std::int64_t>(elements)});
  }
  Handle start() {
    void* const data = gradient.data();
    return session.start(0, {&data, 1});
  }
  std::vector<float> gradient;
  Session session;
};

TEST(Channels, HundredsOfSessionsKeepTheirMessagesApart) {
  local::run(2, [](const std::shared_ptr<Transport>& transport) {
    std::vector<std::unique_ptr<One>> all;
    for (std::size_t i = 0; i < 257; ++i) {
      all.push_back(std::make_unique<One>(transport, 10 + i));
      all.back()->session.seal();
    }
    // The first and the last share their number modulo 256; in another order on every rank.
    std::vector<std::size_t> order = {0, 128, 256};
    if (transport->rank() == 1) std::swap(order.front(), order.back());
    std::vector<Handle> handles;
    for (const std::size_t i : order) {
      handles.push_back(all[i]->start());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (Handle& handle : handles) handle.wait();
    for (const std::size_t i : order) EXPECT_EQ(all[i]->gradient, std::vector<float>(10 + i, 0.5f)) << i;
  });
}

/// As threads of a program may do it; that Sessions are made in the same order is all that is promised.
TEST(Channels, SessionsThatAreSealedAtOnceAgreeOnThem) {
  local::run(2, [](const std::shared_ptr<Transport>& transport) {
    One first(transport, 10), second(transport, 300);
    const auto seal_late = [](One& one, bool late) {
      if (late) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      one.session.seal();
    };
    // Rank 0 is in the first one, while rank 1 comes to the second one only.
    std::thread other([&] { seal_late(first, transport->rank() == 1); });
    seal_late(second, transport->rank() == 0);
    other.join();
    Handle a = first.start(), b = second.start();
    a.wait();
    b.wait();
    EXPECT_EQ(first.gradient, std::vector<float>(10, 0.5f));
    EXPECT_EQ(second.gradient, std::vector<float>(300, 0.5f));
  });
}

}  // namespace
}  // namespace tightwire::testing::session_channels_test
