#include "engine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "context_switch.hpp"
#include "memory.hpp"

namespace cuda_emulation {

thread_local constinit Index thread_index{}, block_index{}, block_size{}, grid_size{};
thread_local constinit std::uint32_t lane = 0, warp = 0;
thread_local constinit std::byte* shared_memory = nullptr;
thread_local constinit std::uint8_t* shared_written = nullptr;
thread_local constinit std::uint32_t shared_bytes = 0, dynamic_shared_at = 0;
thread_local constinit Range last_range{};

Engine& Engine::of_thread() {
  thread_local Engine engine;
  return engine;
}

cudaError_t Engine::run(const Launch& launch) {
  const DeviceAccess access;
  prepare(launch);
  const std::uint64_t blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  draw_block_order(blocks);
  for (std::uint64_t number = 0; number < blocks && error_ == cudaSuccess; ++number) {
    prepare_block(place_in_order(number, blocks));
    resume(*pick());
    if (error_ == cudaSuccess && live_ != 0) report_deadlock();
  }
  if (error_ == cudaSuccess) return cudaSuccess;
  // Fibers that did not come to their end begin anew.
  for (Fiber& fiber : fibers_) fiber.stack = prepared_stack(fiber.memory + kStack, &fiber_main);
  report(why_);
  set_sticky_error(error_);
  return error_;
}

void Engine::prepare(const Launch& launch) {
  launch_ = &launch;
  error_ = cudaSuccess;
  current_ = nullptr;
  threads_ = launch.block.x * launch.block.y * launch.block.z;
  while (fibers_.size() < threads_) {
    Fiber& fiber = fibers_.emplace_back();
    void* const memory =
        mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    fiber.memory = static_cast<std::byte*>(memory);
    fiber.stack = prepared_stack(fiber.memory + kStack, &fiber_main);
  }
  for (std::uint32_t i = 0; i < threads_; ++i) {
    fibers_[i].lane = i % kWarpSize;
    fibers_[i].warp = i / kWarpSize;
    fibers_[i].index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / launch.block.x / launch.block.y};
  }
  warps_.assign((threads_ + kWarpSize - 1) / kWarpSize, {});

  shared_.resize(kMostShared + 16);
  shared_marks_.resize(kMostShared);
  const auto unaligned = reinterpret_cast<std::uintptr_t>(shared_.data());
  shared_memory = shared_.data() + (16 - unaligned % 16) % 16;
  shared_written = options().check_initialized ? shared_marks_.data() : nullptr;
  dynamic_shared_at = (launch.declared_shared + 15) / 16 * 16;
  shared_bytes = launch.dynamic_shared != 0 ? dynamic_shared_at + launch.dynamic_shared : launch.declared_shared;
  block_size = launch.block;
  grid_size = launch.grid;
  last_range = {};
  ranges_.clear();
  for (const Allocation& allocation : allocations())
    ranges_.push_back({allocation.begin, allocation.end, allocation.written});
}

void Engine::prepare_block(std::uint64_t number) {
  block_index = {static_cast<std::uint32_t>(number % grid_size.x),
                 static_cast<std::uint32_t>(number / grid_size.x % grid_size.y),
                 static_cast<std::uint32_t>(number / grid_size.x / grid_size.y)};
  std::memset(shared_memory, 0xff, shared_bytes);
  std::fill_n(shared_marks_.begin(), shared_bytes, std::uint8_t{0});
  ready_warps_ = 0;
  for (std::uint32_t w = 0; w < warps_.size(); ++w) {
    const std::uint32_t lanes = std::min(kWarpSize, threads_ - w * kWarpSize);
    const std::uint32_t all = lanes == kWarpSize ? ~0u : (1u << lanes) - 1;
    warps_[w] = {all, all, 0, all};
    ready_warps_ |= 1u << w;
  }
  live_ = threads_;
  at_barrier_ = said_yes_ = 0;
  current_ = nullptr;
}

std::uint64_t Engine::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

void Engine::draw_block_order(std::uint64_t blocks) {
  random_ = 88172645463325252u ^ options().seed * 0x9e3779b97f4a7c15u;
  for (int i = 0; i < 4; ++i) random();
  stride_ = 1;
  offset_ = 0;
  if (options().seed == 0 || launch_->ordered || blocks == 1) return;
  offset_ = random() % blocks;
  stride_ = random() % blocks | 1;
  while (std::gcd(stride_, blocks) != 1) stride_ += 2;
}
std::uint64_t Engine::place_in_order(std::uint64_t number, std::uint64_t blocks) const {
  if (options().reverse && !launch_->ordered) return blocks - 1 - number;
  return (number * stride_ + offset_) % blocks;
}

Fiber* Engine::pick() {
  if (ready_warps_ == 0) return nullptr;
  // The first from a random place on, or from either end.
  const auto choose = [&](std::uint32_t ready) -> std::uint32_t {
    if (options().seed != 0) {
      const auto from = static_cast<int>(random() % kWarpSize);
      return (static_cast<std::uint32_t>(std::countr_zero(std::rotr(ready, from))) + static_cast<std::uint32_t>(from)) %
             kWarpSize;
    }
    return static_cast<std::uint32_t>(options().reverse ? 31 - std::countl_zero(ready) : std::countr_zero(ready));
  };
  const bool stays =
      current_ != nullptr && warps_[current_->warp].ready != 0 && (options().seed == 0 || (random() & 1) != 0);
  const std::uint32_t w = stays ? current_->warp : choose(ready_warps_);
  return &fibers_[w * kWarpSize + choose(warps_[w].ready)];
}

void Engine::resume(Fiber& fiber) {
  void** const saved = current_ != nullptr ? &current_->stack : &run_stack_;
  current_ = &fiber;
  thread_index = fiber.index;
  lane = fiber.lane;
  warp = fiber.warp;
  cuda_emulation_switch(saved, fiber.stack);
}
void Engine::back_to_run() {
  Fiber* const from = current_;
  current_ = nullptr;
  cuda_emulation_switch(&from->stack, run_stack_);
}
void Engine::suspend() {
  Fiber* const next = pick();
  if (next == current_) return;
  next != nullptr ? resume(*next) : back_to_run();
}

void Engine::set_ready(std::uint32_t w, std::uint32_t lanes) {
  warps_[w].ready |= lanes;
  if (lanes != 0) ready_warps_ |= 1u << w;
}
void Engine::set_waiting(const Fiber& fiber) {
  warps_[fiber.warp].ready &= ~(1u << fiber.lane);
  if (warps_[fiber.warp].ready == 0) ready_warps_ &= ~(1u << fiber.warp);
}

void Engine::fiber_main() {
  Engine& engine = of_thread();
  for (;;) {
    engine.launch_->body();
    engine.leave();
  }
}
void Engine::leave() {
  Fiber& fiber = *current_;
  Warp& own = warps_[fiber.warp];
  for (std::uint32_t waiting = own.waiting; waiting != 0; waiting &= waiting - 1) {
    const auto other = static_cast<std::uint32_t>(std::countr_zero(waiting));
    if ((fibers_[fiber.warp * kWarpSize + other].mask >> fiber.lane & 1u) != 0)
      fail(cudaErrorLaunchFailure, "a lane left the kernel while lane " + std::to_string(other) + " waits for it");
  }
  if (at_barrier_ != 0)
    fail(cudaErrorLaunchFailure, "a thread left the kernel while " + std::to_string(at_barrier_) +
                                     " threads of its block wait at __syncthreads");
  own.live &= ~(1u << fiber.lane);
  --live_;
  set_waiting(fiber);
  suspend();  // comes back as a thread of the next block
}

void Engine::report_deadlock() {
  error_ = cudaErrorLaunchTimeout;
  why_ = "deadlock in block " + std::to_string(block_index.x) + " of kernel " + launch_->kernel + ": " +
         std::to_string(at_barrier_) + " threads wait at __syncthreads";
  for (std::uint32_t w = 0; w < warps_.size(); ++w)
    if (warps_[w].waiting != 0)
      why_ += ", lanes " + std::to_string(warps_[w].waiting) + " of warp " + std::to_string(w) + " wait for others";
}

void Engine::fail(cudaError_t error, const std::string& why) {
  error_ = error;
  why_ = why + " [kernel " + launch_->kernel + ", block " + std::to_string(block_index.x) + ", thread " +
         std::to_string(current_->index.x) + "]";
  back_to_run();
  std::abort();  // nobody goes on with it
}

Range Engine::find_range(std::uintptr_t address, std::size_t bytes, bool writes) {
  const auto holds = [&](std::uintptr_t begin, std::size_t size) {
    return address >= begin && address + bytes <= begin + size;
  };
  // Of a kernel's own memory and the block's, what was written is not watched through pointers.
  const auto stack = reinterpret_cast<std::uintptr_t>(current_->memory);
  if (holds(stack, kStack)) return {stack, stack + kStack, nullptr};
  const auto shared = reinterpret_cast<std::uintptr_t>(shared_memory);
  if (holds(shared, shared_bytes)) return {shared, shared + shared_bytes, shared_written};
  if (!writes && holds(launch_->parameters.begin, launch_->parameters.end - launch_->parameters.begin))
    return launch_->parameters;
  const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                     [](std::uintptr_t at, const Range& range) { return at < range.begin; });
  if (next != ranges_.begin() && address + bytes <= std::prev(next)->end) return last_range = *std::prev(next);
  fault(cudaErrorIllegalAddress, writes ? "write out of bounds" : "read out of bounds", address, bytes);
}

Range find_range(std::uintptr_t address, std::size_t bytes, bool writes) {
  return Engine::of_thread().find_range(address, bytes, writes);
}
void fault(cudaError_t error, const char* what, std::uintptr_t address, std::size_t bytes) {
  std::string why = what;
  if (bytes != 0) why += ": " + std::to_string(bytes) + " bytes, ";
  if (bytes != 0 && address > kWarpSize * kWarpSize * 1024) why += describe(address);
  if (bytes != 0 && address <= kWarpSize * kWarpSize * 1024) why += "at " + std::to_string(address);
  Engine::of_thread().fail(error, why);
}

}  // namespace cuda_emulation
