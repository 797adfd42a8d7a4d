// Gradients that stay on the GPU, one rank per device. Runs under `tightwire run -n 4 --`, mpirun, srun, torchrun.
#include <cuda_runtime_api.h>
#include <tightwire/cuda_session.hpp>
#include <tightwire/nccl.hpp>
#include <tightwire/tightwire.hpp>

#include <iostream>

int main() {
  const tightwire::Rendezvous job = tightwire::rendezvous::environment();
  const tightwire::cuda::Devices devices = tightwire::cuda::devices();
  if (devices.count == 0) return std::cout << devices.note << '\n', 0;
  cudaSetDevice(job.rank % devices.count);
  tightwire::cuda::Session session(tightwire::nccl::open(job), {.codec = tightwire::Int8{.block = 256}});
  session.add("layer.weight", {512, 256}, tightwire::ElementType::bf16);
  session.seal();  // ranks that disagree stop here, with an error that names both sides

  void* weight = nullptr;
  cudaStream_t stream = nullptr;  // the trainer's: gradients are ready there, and the optimizer goes on there
  cudaMalloc(&weight, 512 * 256 * 2);
  cudaMemsetAsync(weight, 0, 512 * 256 * 2, stream);
  for (int step = 0; step < 3; ++step) {
    session.all_reduce({&weight, 1}, stream);  // orders the stream; the host goes on at once
    session.commit();
  }
  session.synchronize();
  std::cout << "sent " << session.total().sent_bytes << " bytes over " << session.transport() << '\n';
  cudaFree(weight);
}
