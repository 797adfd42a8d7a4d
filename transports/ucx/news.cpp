#include "news.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace tightwire::ucx {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

struct Mark {
  std::uint64_t id = 0;
  std::uint64_t heard = 0;
};

}  // namespace

News::News() : id_(next_id()), descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) throw Error(Errc::transport, std::string("ucx: eventfd: ") + std::strerror(errno));
}

News::~News() { ::close(descriptor_); }

void News::announce() noexcept {
  ++count_;
  if (sleepers_.load() > 0) eventfd_write(descriptor_, 1);
}

std::uint64_t& News::heard_by_this_thread() const noexcept {
  thread_local std::array<Mark, 8> marks;
  Mark& mark = marks[id_ % marks.size()];
  if (mark.id != id_) mark = {.id = id_, .heard = 0};
  return mark.heard;
}

void News::end_sleep() noexcept {
  // The last one to wake empties the descriptor: emptied earlier, it could let another sleeper go on sleeping.
  eventfd_t ignored;
  if (--sleepers_ == 0) eventfd_read(descriptor_, &ignored);
}

}  // namespace tightwire::ucx
