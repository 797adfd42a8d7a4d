#include "process_watch.hpp"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace tightwire::shm {
namespace {

/// As the kernel numbers it everywhere; older headers lack it.
constexpr long kPidfdOpen = 434;

}  // namespace

ProcessWatch::ProcessWatch() : all_(rendezvous::Descriptor::make([] { return epoll_create1(EPOLL_CLOEXEC); })) {}

void ProcessWatch::add(int rank, pid_t process) {
  if (!all_) return;
  auto opened = rendezvous::Descriptor::make([&] { return static_cast<int>(syscall(kPidfdOpen, process, 0)); });
  if (!opened) return;
  processes_.push_back(std::move(opened));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = rank;
  (void)epoll_ctl(all_.get(), EPOLL_CTL_ADD, processes_.back().get(), &event);
}

std::optional<int> ProcessWatch::ended() const noexcept {
  epoll_event event{};
  if (!all_ || epoll_wait(all_.get(), &event, 1, 0) != 1) return std::nullopt;
  return int{event.data.fd};
}

}  // namespace tightwire::shm
