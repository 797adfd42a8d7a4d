// A Session on a device saves and restores what a Session on hosts does: its residuals are brought to the host for it.
#include "session_state.hpp"

namespace tightwire::cuda {
namespace {

/// While it lives, residuals are read and written in a copy on the host.
class OnHost {
 public:
  OnHost(ErrorMemory& memory, const detail::Memory& on_device, int rank)
      : memory_(memory), on_device_(on_device), rank_(rank), copy_(on_device.size()) {
    if (!copy_.empty())
      detail::require(cudaMemcpy(copy_.data(), on_device.data(), copy_.size(), cudaMemcpyDeviceToHost), "cudaMemcpy",
                      rank);
    memory_.place(copy_.data());
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  ~OnHost() { memory_.place(on_device_.data()); }

  void bring_back() {
    if (copy_.empty()) return;
    detail::require(cudaMemcpy(on_device_.data(), copy_.data(), copy_.size(), cudaMemcpyHostToDevice), "cudaMemcpy",
                    rank_);
    detail::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize", rank_);  // ours do not wait for that one
  }

 private:
  ErrorMemory& memory_;
  const detail::Memory& on_device_;
  int rank_;
  std::vector<std::byte> copy_;
};

}  // namespace

void Session::State::require_between_steps(const char* call) {
  require_idle(call);
  if (step_calls_ != 0) throw bad(std::string(call) + ": commit the step or roll it back first");
  synchronize();
}
tightwire::detail::SessionMemory Session::State::memory_view() const {
  return {options_, list_.parameters(), parameter_memory_, list_.buckets(),
          memory_,  transport_->rank(), transport_->size()};
}

std::vector<std::byte> Session::State::save() {
  require_between_steps("save");
  closing([&] {
    settle_residuals();
    wait_for_streams();
  });
  const OnHost on_host(memory_, residuals_, transport_->rank());
  return tightwire::detail::save(memory_view(), {steps_, committed_, rollbacks_, run_});
}

void Session::State::restore(std::span<const std::span<const std::byte>> states, bool own_only) {
  require_between_steps("restore");
  OnHost on_host(memory_, residuals_, transport_->rank());
  const tightwire::detail::Restored restored =
      tightwire::detail::restore(*host_, host_->next_channel(), memory_view(), states, own_only, memory_);
  closing([&] { on_host.bring_back(); });
  steps_ = restored.counters.steps;
  committed_ = restored.counters.committed;
  rollbacks_ = static_cast<std::uint8_t>(restored.counters.rollbacks);
  if (restored.counters.run != 0) run_ = restored.counters.run;
  for (BucketId id = 0; id < list_.buckets().size(); ++id) restored.reductions[id].apply(list_.buckets()[id]);
}

}  // namespace tightwire::cuda
