// The double of NCCL itself: mistakes that are planted are found.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "api.hpp"
#include "cuda_emulation/nccl_double.hpp"
#include "cuda_emulation/runtime/options.hpp"
#include "cuda_emulation/schedules.hpp"

namespace cuda_emulation {
namespace {

constexpr std::size_t kBytes = 256;

/// What two ranks do with two buffers each, of which the first is written.
struct Place {
  int rank, peer;
  ncclComm* comm;
  std::byte *out, *in;
  cudaStream_t stream;
};
struct Found {
  std::string report;
  cudaError_t error[2];
};
Found two_ranks(const std::function<void(const Place&)>& body) {
  reset();
  reset_nccl();
  use(kSchedules[0]);
  options().devices = 2;
  options().patience_ms = 200;
  Found found;
  std::barrier together(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([rank, &body, &found, &together] {
      EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
      Place place{rank, 1 - rank, join_communicator(2, rank, 7), nullptr, nullptr, nullptr};
      EXPECT_EQ(cudaStreamCreateWithFlags(&place.stream, cudaStreamNonBlocking), cudaSuccess);
      EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&place.out), kBytes), cudaSuccess);
      EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&place.in), kBytes), cudaSuccess);
      EXPECT_EQ(cudaMemsetAsync(place.out, 1 + rank, kBytes, place.stream), cudaSuccess);
      together.arrive_and_wait();  // an error of one would be every call's of the other
      body(place);
      together.arrive_and_wait();
      found.error[rank] = cudaStreamSynchronize(place.stream);
      leave_communicator(place.comm);
    });
  for (std::thread& thread : threads) thread.join();
  found.report = last_report();
  options().patience_ms = 3000;
  reset();
  return found;
}
const tightwire::nccl::Api& api() { return nccl_double(); }
void send(const Place& place, std::size_t bytes = kBytes) {
  EXPECT_EQ(api().send(place.out, bytes, ncclUint8, place.peer, place.comm, place.stream), ncclSuccess);
}
void receive(const Place& place, std::size_t bytes = kBytes) {
  EXPECT_EQ(api().recv(place.in, bytes, ncclUint8, place.peer, place.comm, place.stream), ncclSuccess);
}

TEST(NcclDouble, AGroupedPairArrives) {
  const Found found = two_ranks([](const Place& place) {
    api().group_start();
    send(place);
    receive(place);
    api().group_end();
    std::vector<std::byte> came(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(came.data(), place.in, kBytes, cudaMemcpyDeviceToHost, place.stream), cudaSuccess);
    EXPECT_EQ(came, std::vector<std::byte>(kBytes, std::byte(1 + place.peer)));
  });
  EXPECT_EQ(found.report, "");
}

TEST(NcclDouble, AnUngroupedPairOfSendsIsADeadlockInWords) {
  const Found found = two_ranks([](const Place& place) {
    send(place);
    receive(place);
  });
  EXPECT_EQ(found.error[0], cudaErrorLaunchTimeout);
  EXPECT_NE(found.report.find("deadlock"), std::string::npos) << found.report;
  EXPECT_NE(found.report.find("NCCL group of rank 0, send to 1"), std::string::npos) << found.report;
}

TEST(NcclDouble, AnUnequalCountIsAnErrorOfBothSides) {
  ncclResult_t states[2] = {};
  const Found found = two_ranks([&](const Place& place) {
    api().group_start();
    send(place);
    receive(place, place.rank == 0 ? kBytes / 2 : kBytes);
    api().group_end();
    EXPECT_EQ(cudaStreamSynchronize(place.stream), cudaSuccess);
    api().comm_get_async_error(place.comm, &states[place.rank]);
  });
  EXPECT_EQ(states[0], ncclInvalidUsage);
  EXPECT_NE(found.report.find("256 bytes from rank 1 meet a receive of 128 on rank 0"), std::string::npos)
      << found.report;
}

TEST(NcclDouble, MemoryOfTheHostIsRefused) {
  two_ranks([](const Place& place) {
    std::vector<std::byte> host(kBytes);
    EXPECT_EQ(api().send(host.data(), kBytes, ncclUint8, place.peer, place.comm, place.stream), ncclInvalidArgument);
    EXPECT_EQ(api().send(place.out, kBytes + 1, ncclUint8, place.peer, place.comm, place.stream), ncclInvalidArgument);
    EXPECT_EQ(api().send(place.out, kBytes, ncclUint8, 2, place.comm, place.stream), ncclInvalidArgument);
  });
}

/// The stream that sends does not wait for the one that writes.
TEST(NcclDouble, AMissingWaitForAStreamShowsAsUnwrittenMemory) {
  const Found found = two_ranks([](const Place& place) {
    cudaStream_t another = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&another, cudaStreamNonBlocking), cudaSuccess);
    std::byte* fresh = nullptr;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&fresh), kBytes), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(fresh, 3, kBytes, another), cudaSuccess);
    api().group_start();
    EXPECT_EQ(api().send(fresh, kBytes, ncclUint8, place.peer, place.comm, place.stream), ncclSuccess);
    receive(place);
    api().group_end();
  });
  EXPECT_NE(found.report.find("sends memory that nobody wrote"), std::string::npos) << found.report;
}

}  // namespace
}  // namespace cuda_emulation
