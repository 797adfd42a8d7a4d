#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <tightwire/codec.hpp>
#include <tightwire/element.hpp>
#include <tightwire/error.hpp>
#include <tightwire/hierarchy.hpp>
#include <tightwire/momentum.hpp>
#include <tightwire/observer.hpp>
#include <tightwire/plan.hpp>
#include <tightwire/policy.hpp>

namespace tightwire {

/// What becomes of a step in which some rank met a NaN or an infinity. The verdict is the same on all ranks.
enum class NonFinitePolicy : std::uint8_t {
  propagate,  ///< it shows in the result of every rank: the element itself (exact), its whole block (quantized)
  skip_step,  ///< as propagate, and `commit` rolls the step back and returns false
  error,      ///< waiting for the reduction throws Error(nonfinite); the Session stays usable after `rollback`
};

constexpr const char* to_string(NonFinitePolicy policy) {
  return policy == NonFinitePolicy::propagate   ? "propagate"
         : policy == NonFinitePolicy::skip_step ? "skip_step"
                                                : "error";
}

/// Equal on all ranks, which `seal` checks.
struct SessionOptions {
  Codec codec = Int8{};  ///< for every parameter that no rule of the policy covers
  Policy policy = {};
  bool average = true;         ///< mean over ranks; false: sum
  bool error_feedback = true;  ///< keep what the codec drops, at the sender and at the owner, and add it next time
  /// Type in which that is kept: f32, or bf16 for half the memory and less traffic, rounded at random so that nothing
  /// is lost on average (docs/codecs.md). bf16 is for codecs of blocks on hosts, without momentum correction.
  ElementType residual = ElementType::f32;
  bool rollback = true;  ///< keep the residuals of the last commit, at the price of twice their memory
  NonFinitePolicy nonfinite = NonFinitePolicy::propagate;
  MomentumCorrection momentum = {};                  ///< off by default; see there what the optimizer must not do then
  std::uint64_t seed = 0;                            ///< of stochastic rounding, and of what is drawn at random
  std::chrono::milliseconds timeout{60'000};         ///< without progress, above 0; not compared between ranks
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< parameters that are in no bucket by `seal` are put into ones
                                                     ///< of about this size, in order of addition
  PlanOptions plan = {};
  Hierarchy hierarchy = {};                 ///< flat by default
  std::shared_ptr<Observer> observer = {};  ///< told what the Session does, such as Telemetry; not compared
};

/// Throws Error(invalid_argument) for options that make no sense, Error(unsupported) for such as do not go together.
/// `who` begins every error.
inline void check_options(const SessionOptions& options, const std::string& who) {
  const auto bad = [&](const std::string& what) { return Error(Errc::invalid_argument, who + what); };
  if (options.timeout.count() <= 0)
    throw bad("timeout is " + std::to_string(options.timeout.count()) + " ms, and must be above 0");
  if (options.nonfinite == NonFinitePolicy::skip_step && options.error_feedback && !options.rollback)
    throw bad("the policy skip_step needs rollback = true, or error_feedback = false");
  options.momentum.check();
  if (options.momentum && !options.error_feedback)
    throw bad("momentum correction needs error_feedback = true, which gathers it");
  if (options.residual == ElementType::f32) return;
  if (options.residual != ElementType::bf16) throw bad("residuals are kept in fp32 or bf16, not in fp16");
  if (options.momentum) throw Error(Errc::unsupported, who + "momentum correction is not with residuals in bf16");
}

}  // namespace tightwire
