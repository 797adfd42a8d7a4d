// What threads do together: the lanes of a warp, and the threads of a block.
#include <bit>
#include <string>

#include "engine.hpp"

namespace cuda_emulation {
namespace {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::shuffle: return "a shuffle";
    case Collective::vote: return "a vote";
    case Collective::reduce: return "a reduction";
    case Collective::match: return "a match";
    default: return "__syncwarp";
  }
}

template <class Step>
void for_lanes(std::uint32_t lanes, const Step& step) {
  for (; lanes != 0; lanes &= lanes - 1) step(static_cast<std::uint32_t>(std::countr_zero(lanes)));
}

std::uint32_t reduced(Reduce how, std::uint32_t a, std::uint32_t b) {
  const auto signed_a = static_cast<std::int32_t>(a), signed_b = static_cast<std::int32_t>(b);
  switch (how) {
    case Reduce::add: return a + b;
    case Reduce::min_signed: return signed_b < signed_a ? b : a;
    case Reduce::max_signed: return signed_b > signed_a ? b : a;
    case Reduce::min_unsigned: return b < a ? b : a;
    case Reduce::max_unsigned: return b > a ? b : a;
    case Reduce::bit_and: return a & b;
    case Reduce::bit_or: return a | b;
    default: return a ^ b;
  }
}

std::uint32_t counted(Vote how, std::uint32_t yes, std::uint32_t lanes) {
  switch (how) {
    case Vote::ballot: return yes;
    case Vote::any: return yes != 0 ? 1 : 0;
    case Vote::all: return yes == lanes ? 1 : 0;
    default: return yes == 0 || yes == lanes ? 1 : 0;
  }
}

/// The lane that a lane takes a value from; its own, and false, beyond the bounds.
std::uint32_t source_of(const Fiber& fiber, bool& in_range) {
  const std::uint32_t by = fiber.by & 31u, clamp = fiber.bounds & 31u, segment = fiber.bounds >> 8 & 31u;
  const std::uint32_t first = fiber.lane & segment, last = first | (clamp & ~segment);
  const auto from = static_cast<int>(fiber.lane), distance = static_cast<int>(by);
  int source = 0;
  switch (static_cast<Shuffle>(fiber.how)) {
    case Shuffle::up: source = from - distance; break;
    case Shuffle::down: source = from + distance; break;
    case Shuffle::butterfly: source = from ^ distance; break;
    case Shuffle::index: source = static_cast<int>(first | (by & ~segment)); break;
  }
  const auto bound = static_cast<int>(last);
  in_range = static_cast<Shuffle>(fiber.how) == Shuffle::up ? source >= bound : source <= bound;
  return in_range ? static_cast<std::uint32_t>(source) : fiber.lane;
}

}  // namespace

Fiber& Engine::meet(Collective collective, std::uint8_t how, std::uint64_t value, std::uint32_t by,
                    std::uint32_t bounds, std::uint32_t mask) {
  Fiber& fiber = *current_;
  Warp& own = warps_[fiber.warp];
  const std::string name = name_of(collective);
  if ((mask >> fiber.lane & 1u) == 0)
    fail(cudaErrorLaunchFailure, name + " by lane " + std::to_string(fiber.lane) + ", which is not in its own mask");
  if ((mask & own.all & ~own.live) != 0)
    fail(cudaErrorLaunchFailure, name + " whose mask names a lane that has left the kernel");
  fiber.collective = collective;
  fiber.how = how;
  fiber.value = value;
  fiber.by = by;
  fiber.bounds = bounds;
  fiber.mask = mask;
  own.waiting |= 1u << fiber.lane;
  set_waiting(fiber);
  if (!complete_if_all_here(fiber)) suspend();
  return fiber;
}

bool Engine::complete_if_all_here(Fiber& fiber) {
  const Warp& own = warps_[fiber.warp];
  const std::uint32_t wanted = fiber.mask & own.live;
  for_lanes(wanted & own.waiting, [&](std::uint32_t other_lane) {
    const Fiber& other = fibers_[fiber.warp * kWarpSize + other_lane];
    if (other.mask != fiber.mask || other.collective != fiber.collective || other.how != fiber.how)
      fail(cudaErrorLaunchFailure, "lane " + std::to_string(fiber.lane) + " is in " + name_of(fiber.collective) +
                                       ", and lane " + std::to_string(other.lane) +
                                       " in another: " + name_of(other.collective));
  });
  if ((wanted & ~own.waiting) != 0) return false;
  complete(fiber.warp, wanted, fiber);
  return true;
}

void Engine::complete(std::uint32_t w, std::uint32_t lanes, const Fiber& one) {
  Fiber* const all = &fibers_[w * kWarpSize];
  if (one.collective == Collective::vote) {
    std::uint32_t yes = 0;
    for_lanes(lanes, [&](std::uint32_t l) { yes |= all[l].value != 0 ? 1u << l : 0; });
    const std::uint32_t result = counted(static_cast<Vote>(one.how), yes, lanes);
    for_lanes(lanes, [&](std::uint32_t l) { all[l].result = result; });
  } else if (one.collective == Collective::reduce) {
    const auto first = static_cast<std::uint32_t>(std::countr_zero(lanes));
    auto result = static_cast<std::uint32_t>(all[first].value);
    for_lanes(lanes & (lanes - 1), [&](std::uint32_t l) {
      result = reduced(static_cast<Reduce>(one.how), result, static_cast<std::uint32_t>(all[l].value));
    });
    for_lanes(lanes, [&](std::uint32_t l) { all[l].result = result; });
  } else if (one.collective == Collective::match) {
    for_lanes(lanes, [&](std::uint32_t l) {
      all[l].result = 0;
      for_lanes(lanes, [&](std::uint32_t k) { all[l].result |= all[k].value == all[l].value ? 1u << k : 0; });
    });
  } else if (one.collective == Collective::shuffle) {
    // What comes from a lane that does not take part is undefined; here it is something nobody could want.
    for_lanes(lanes, [&](std::uint32_t l) {
      const std::uint32_t source = source_of(all[l], all[l].in_range);
      all[l].result = (lanes >> source & 1u) != 0 ? all[source].value : 0xdeadbeefu;
    });
  }
  warps_[w].waiting &= ~lanes;
  set_ready(w, lanes);
}

std::uint32_t Engine::barrier(bool yes) {
  Fiber& fiber = *current_;
  if (live_ < threads_)
    fail(cudaErrorLaunchFailure,
         "__syncthreads after " + std::to_string(threads_ - live_) + " threads of the block have left the kernel");
  const std::uint32_t parity = barriers_ % 2;
  ++at_barrier_;
  said_yes_ += yes ? 1 : 0;
  set_waiting(fiber);
  if (at_barrier_ == live_)
    release_barrier();
  else
    suspend();
  return results_[parity];
}
void Engine::release_barrier() {
  results_[barriers_++ % 2] = said_yes_;
  at_barrier_ = said_yes_ = 0;
  for (std::uint32_t w = 0; w < warps_.size(); ++w) set_ready(w, warps_[w].live);
}

void Engine::yield() {
  // The next in turn, so that threads that poll cannot keep the one they wait for from its turn.
  const auto own = static_cast<std::uint32_t>(current_ - fibers_.data());
  for (std::uint32_t i = 1; i < threads_; ++i) {
    Fiber& other = fibers_[(own + i) % threads_];
    if ((warps_[other.warp].ready >> other.lane & 1u) != 0) return resume(other);
  }
}

std::uint32_t shuffle(Shuffle how, std::uint32_t value, std::uint32_t by, std::uint32_t bounds, std::uint32_t mask,
                      bool* in_range) {
  const Fiber& fiber =
      Engine::of_thread().meet(Collective::shuffle, static_cast<std::uint8_t>(how), value, by, bounds, mask);
  *in_range = fiber.in_range;
  return static_cast<std::uint32_t>(fiber.result);
}
std::uint32_t vote(Vote how, bool yes, std::uint32_t mask) {
  return static_cast<std::uint32_t>(
      Engine::of_thread().meet(Collective::vote, static_cast<std::uint8_t>(how), yes ? 1 : 0, 0, 0, mask).result);
}
std::uint32_t reduce(Reduce how, std::uint32_t value, std::uint32_t mask) {
  return static_cast<std::uint32_t>(
      Engine::of_thread().meet(Collective::reduce, static_cast<std::uint8_t>(how), value, 0, 0, mask).result);
}
std::uint32_t match_any(std::uint64_t value, std::uint32_t mask) {
  return static_cast<std::uint32_t>(Engine::of_thread().meet(Collective::match, 0, value, 0, 0, mask).result);
}
void sync_warp(std::uint32_t mask) { Engine::of_thread().meet(Collective::sync, 0, 0, 0, 0, mask); }
void sync_block() { Engine::of_thread().barrier(false); }
std::uint32_t sync_block_voting(BlockVote how, bool yes) {
  Engine& engine = Engine::of_thread();
  const std::uint32_t threads = engine.live_threads();
  const std::uint32_t count = engine.barrier(yes);
  return how == BlockVote::count ? count : (how == BlockVote::all ? count == threads : count != 0) ? 1 : 0;
}
void yield() { Engine::of_thread().yield(); }

}  // namespace cuda_emulation
