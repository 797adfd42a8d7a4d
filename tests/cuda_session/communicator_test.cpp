// A communicator by itself, without what nccl.h cannot stand beside it.
#include "communicator.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cuda_emulation/nccl_double.hpp"
#include "cuda_emulation/runtime/options.hpp"

namespace tightwire::testing::cuda_communicator_test {
namespace {

/// Who watches meets an error that is none of ours.
class NoMemoryToAsk final : public Membership {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const std::vector<std::string>& blobs() const noexcept override { return blobs_; }
  std::optional<Loss> loss() const override {
    if (std::this_thread::get_id() != owner_) throw std::bad_alloc();
    return std::nullopt;
  }
  int loss_descriptor() const noexcept override { return -1; }
  void give_up(std::string_view reason) noexcept override { reason_ = reason; }
  void leave(std::chrono::milliseconds) noexcept override {}
  std::string reason_;

 private:
  std::vector<std::string> blobs_;
  std::thread::id owner_ = std::this_thread::get_id();
};
TEST(NcclCommunicator, WhateverEndsTheWatchClosesTheTransport) {
  cuda_emulation::reset();
  cuda_emulation::reset_nccl();
  cuda_emulation::options().devices = 1;
  cudaSetDevice(0);
  const auto membership = std::make_shared<NoMemoryToAsk>();
  {
    nccl::Communicator communicator(cuda_emulation::nccl_double(), cuda_emulation::join_communicator(1, 0, 3),
                                    {.rank = 0,
                                     .size = 1,
                                     .device = 0,
                                     .timeout = std::chrono::seconds(5),
                                     .owned = true,
                                     .membership = membership,
                                     .leaves = false});
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    communicator.post({}, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    try {
      for (int i = 0; i < 1000; ++i) {
        communicator.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      ADD_FAILURE() << "still open";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::internal);
      EXPECT_STREQ(error.what(), "rank 0: std::bad_alloc");
    }
  }
  EXPECT_EQ(membership->reason_, "rank 0: std::bad_alloc");
}

}  // namespace
}  // namespace tightwire::testing::cuda_communicator_test
