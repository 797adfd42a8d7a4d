#include "joined.hpp"

#include <algorithm>

#include "socket.hpp"

namespace tightwire::rendezvous {

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : " ") + std::to_string(rank);
  return text;
}

std::string describe_attendance(const std::vector<bool>& present) {
  std::vector<int> there;
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < present.size(); ++rank) {
    (present[rank] ? there : missing).push_back(static_cast<int>(rank));
  }
  const std::string named = missing.empty()       ? "no rank"
                            : missing.size() == 1 ? "rank " + list_ranks(missing)
                                                  : "ranks " + list_ranks(missing);
  return named + " missing; present: " + list_ranks(there);
}

void close_gently(std::vector<Channel*> channels, TimePoint until) noexcept {
  try {
    std::vector<pollfd> polled;
    while (!channels.empty() && Clock::now() < until) {
      polled.clear();
      for (Channel* const channel : channels) {
        channel->flush();
        if (!channel->has_output()) channel->finish_sending();
        const int events = channel->has_output() ? POLLIN | POLLOUT : POLLIN;
        polled.push_back({channel->descriptor(), static_cast<short>(events), 0});
      }
      poll_until(polled.data(), polled.size(), until);
      std::erase_if(channels, [](Channel* channel) {
        channel->receive();
        while (channel->next()) {
        }
        return channel->ended();
      });
    }
  } catch (const std::exception&) {
    // Out of memory: the connections are closed all the same, only less politely.
  }
}

}  // namespace tightwire::rendezvous
