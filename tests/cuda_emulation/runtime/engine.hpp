#pragma once
#include <functional>
#include <string>
#include <vector>

#include "device.hpp"
#include "options.hpp"

namespace cuda_emulation {

constexpr std::uint32_t kWarpSize = 32;

/// What the lanes of a warp do together.
enum class Collective : std::uint8_t { shuffle, vote, reduce, match, sync };

struct Fiber {
  void* stack = nullptr;  ///< where it goes on
  std::byte* memory = nullptr;
  Index index{};
  std::uint32_t lane = 0, warp = 0;
  bool waits_for_block = false;

  // A collective the lane has come to: what it is, what the lane brings, what it takes away.
  Collective collective{};
  std::uint8_t how = 0;
  std::uint32_t mask = 0, by = 0, bounds = 0;
  std::uint64_t value = 0, result = 0;
  bool in_range = false;
};
struct Warp {
  std::uint32_t ready = 0, live = 0, waiting = 0, all = 0;
};

struct Launch {
  std::string kernel;
  Index grid{}, block{};
  std::uint32_t declared_shared = 0, dynamic_shared = 0;
  bool ordered = false;
  std::function<void()> body;  ///< one thread's work
  Range parameters{};          ///< which kernels may take the addresses of
};

/// Runs the blocks of a grid one after the other on the calling thread, each thread of a block as a fiber that gives up
/// control where it waits for others.
class Engine {
 public:
  static Engine& of_thread();

  /// The error the kernel ended with, which has been reported.
  cudaError_t run(const Launch& launch);

  // Called by the fibers.
  Fiber& meet(Collective collective, std::uint8_t how, std::uint64_t value, std::uint32_t by, std::uint32_t bounds,
              std::uint32_t mask);
  /// Waits for the block; the number of threads that said yes.
  std::uint32_t barrier(bool yes);
  std::uint32_t live_threads() const { return live_; }
  void yield();
  [[noreturn]] void fail(cudaError_t error, const std::string& why);
  Range find_range(std::uintptr_t address, std::size_t bytes, bool writes);
  bool running() const { return current_ != nullptr; }

 private:
  static constexpr std::size_t kStack = 64 * 1024;
  static constexpr std::size_t kMostShared = 228 * 1024;

  static void fiber_main();
  void prepare(const Launch& launch);
  void prepare_block(std::uint64_t number);
  std::uint64_t place_in_order(std::uint64_t number, std::uint64_t blocks) const;
  void draw_block_order(std::uint64_t blocks);
  void leave();  ///< the current fiber is done
  void report_deadlock();

  Fiber* pick();
  void resume(Fiber& fiber);
  void suspend();  ///< goes on with another fiber, or with `run` if none can
  void back_to_run();
  void set_ready(std::uint32_t warp, std::uint32_t lanes);
  void set_waiting(const Fiber& fiber);
  std::uint64_t random();

  bool complete_if_all_here(Fiber& fiber);
  void complete(std::uint32_t warp, std::uint32_t lanes, const Fiber& one);
  void release_barrier();

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Range> ranges_;
  std::vector<std::byte> shared_;
  std::vector<std::uint8_t> shared_marks_;
  const Launch* launch_ = nullptr;
  Fiber* current_ = nullptr;
  void* run_stack_ = nullptr;
  std::uint32_t threads_ = 0, live_ = 0, ready_warps_ = 0;
  std::uint32_t at_barrier_ = 0, said_yes_ = 0, barriers_ = 0, results_[2] = {};
  std::uint64_t random_ = 0, stride_ = 1, offset_ = 0;
  cudaError_t error_ = cudaSuccess;
  std::string why_;
};

}  // namespace cuda_emulation
