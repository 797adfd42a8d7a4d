// A Session on devices makes what a Session on hosts makes, bit for bit, on every rank.
#include <string>
#include <vector>

#include <tightwire/codec.hpp>

#include "device_steps.hpp"

namespace tightwire::testing {
namespace {

constexpr ElementType kTypes[] = {ElementType::f32, ElementType::bf16, ElementType::f16};

/// Every built-in codec, rotated ones and stochastic ones, on sizes that are multiples of nothing.
Model model_of_all_codecs() {
  std::vector<std::string> specs{"exact", "hadamard:64+int4", "hadamard:256,seed=7+lloyd3", "int4:round=stochastic",
                                 "int8:block=48"};
  for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
  Model model;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto count = static_cast<std::int64_t>(i % 7 == 6 ? i % 3 : 190 + 37 * (i % 11));
    model.push_back({std::to_string(i) + " " + specs[i], {count}, kTypes[i % 3], parse_codec(specs[i])});
  }
  return model;
}
Steps all_codecs(Algorithm algorithm) {
  Steps steps;
  steps.model = model_of_all_codecs();
  steps.options.plan.algorithm = algorithm;
  steps.options.bucket_bytes = 12'000;
  steps.options.seed = 3;
  steps.steps = 2;
  return steps;
}

TEST(CudaSession, EveryCodecAsOnHostsUnderEverySchedule) {
  const Steps steps = all_codecs(Algorithm::two_shot);
  ASSERT_GE(steps.model.size(), 47u);
  for (const int ranks : {2, 4, 8}) {
    const auto expected = steps.run(ranks);
    ASSERT_TRUE(all_equal(expected));
    for (const auto& schedule : cuda_emulation::kSchedules) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks " + std::string(schedule.name));
      cuda_emulation::use(schedule);
      ASSERT_TRUE(same_results(run_on_devices(steps, ranks), expected));
    }
  }
}

TEST(CudaSession, OneRoundAsOnHosts) {
  cuda_emulation::use(cuda_emulation::kSchedules[2]);
  const Steps steps = all_codecs(Algorithm::one_shot);
  for (const int ranks : {1, 3}) ASSERT_TRUE(same_results(run_on_devices(steps, ranks), steps.run(ranks)));
}

/// Sums in place of means, without feedback, without a second copy, small buckets in one round and others in two.
TEST(CudaSession, OptionsAsOnHosts) {
  cuda_emulation::use(cuda_emulation::kSchedules[3]);
  for (int number = 0; number < 3; ++number) {
    SCOPED_TRACE(number);
    Steps steps;
    steps.options.average = number != 0;
    steps.options.error_feedback = number != 1;
    steps.options.rollback = number != 2;
    steps.options.plan.one_shot_bytes = 1000;
    steps.options.bucket_bytes = 4000;
    ASSERT_TRUE(same_results(run_on_devices(steps, 3), steps.run(3)));
    ASSERT_TRUE(same_results(run_on_devices(steps, 1), steps.run(1)));
  }
}

/// Of both stages, element by element.
TEST(CudaSession, ResidualsAreThoseOfHosts) {
  cuda_emulation::use(cuda_emulation::kSchedules[1]);
  constexpr int kRanks = 3;
  Steps steps;
  steps.options.plan.algorithm = Algorithm::two_shot;
  steps.options.plan.share_elements = 1 << 20;  // a single chunk, as on devices
  std::vector<std::vector<std::vector<float>>> on_hosts(kRanks), on_devices(kRanks);
  const auto keep = [&](auto& session, auto& all) {
    for (ParameterId id = 0; id < steps.model.size(); ++id) {
      const auto residual = session.sender_residual(id);
      all.emplace_back(residual.begin(), residual.end());
    }
    const auto residual = session.owner_residual(0);
    all.emplace_back(residual.begin(), residual.end());
  };
  steps.reduce = [&](Session& session, Gradients& gradients) {
    if (session.steps() == 2) keep(session, on_hosts[static_cast<std::size_t>(session.rank())]);
    session.all_reduce(gradients.pointers());
  };
  steps.run(kRanks);
  run_on_devices(steps, kRanks, [&](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    if (session.steps() == 2) keep(session, on_devices[static_cast<std::size_t>(session.rank())]);
    session.all_reduce(gradients.pointers(), stream);
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(on_hosts[rank].size(), steps.model.size() + 1);
    ASSERT_FALSE(on_hosts[rank].back().empty());
    ASSERT_EQ(on_devices[rank], on_hosts[rank]) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tightwire::testing
