// Ten lines that keep a model's gradients in step on all ranks. Runs under `tightwire run -n 4 --`, mpirun, srun,
// torchrun.
#include <tightwire/tightwire.hpp>

#include <iostream>

int main() {
  const std::shared_ptr<tightwire::Transport> transport =
      tightwire::open_transport(tightwire::rendezvous::environment());
  tightwire::Session session(transport, {.codec = tightwire::Int8{.block = 256}});
  session.add("layer.weight", {512, 256});
  session.add("layer.bias", {512});
  session.seal();  // ranks that disagree stop here, with an error that names both sides

  std::vector<float> weight(512 * 256, 1.0f + static_cast<float>(session.rank())), bias(512, 2.0f);
  for (int step = 0; step < 3; ++step) {
    void* gradients[] = {weight.data(), bias.data()};
    session.all_reduce(gradients);  // in place: the mean over ranks, the same bytes on every rank
    session.commit();               // the residuals of this step count; rollback() undoes them
  }
  if (session.rank() == 0)
    std::cout << "mean " << weight[0] << ", bytes per step " << session.last_step().sent_bytes << " instead of "
              << session.last_step().gradient_bytes << '\n';
}
