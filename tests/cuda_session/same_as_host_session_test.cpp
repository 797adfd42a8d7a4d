// A Session on devices makes what a Session on hosts makes, bit for bit, on every rank.
#include <algorithm>
#include <string>
#include <vector>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "device_steps.hpp"

namespace tightwire::testing::cuda_same_as_host_session_test {
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

TEST_F(CudaSession, EveryCodecAsOnHostsUnderEverySchedule) {
  const Steps steps = all_codecs(Algorithm::two_shot);
  ASSERT_GE(steps.model.size(), 47u);
  for (const int ranks : {1, 2, 4, 8}) {
    if (ranks > most_ranks()) break;
    const auto expected = steps.run(ranks);
    ASSERT_TRUE(all_equal(expected));
    for (std::size_t schedule = 0; schedule < schedules().size(); ++schedule) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks " + schedules()[schedule]);
      use_schedule(schedule);
      ASSERT_TRUE(same_results(run_on_devices(steps, ranks), expected));
    }
  }
}

TEST_F(CudaSession, OneRoundAsOnHosts) {
  use_schedule(2);
  const Steps steps = all_codecs(Algorithm::one_shot);
  for (const int ranks : {1, std::min(3, most_ranks())})
    ASSERT_TRUE(same_results(run_on_devices(steps, ranks), steps.run(ranks)));
}

/// Sums in place of means, without feedback, without a second copy, small buckets in one round and others in two.
TEST_F(CudaSession, OptionsAsOnHosts) {
  use_schedule(3);
  for (int number = 0; number < 3; ++number) {
    SCOPED_TRACE(number);
    Steps steps;
    steps.options.average = number != 0;
    steps.options.error_feedback = number != 1;
    steps.options.rollback = number != 2;
    steps.options.plan.one_shot_bytes = 1000;
    steps.options.bucket_bytes = 4000;
    for (const int ranks : {1, std::min(3, most_ranks())})
      ASSERT_TRUE(same_results(run_on_devices(steps, ranks), steps.run(ranks)));
  }
}

/// Every step is done twice, first with other gradients and then rolled back: what is drawn at random is as if it had
/// been done once, on hosts.
TEST_F(CudaSession, ARolledBackStepDrawsNothing) {
  use_schedule(1);
  Steps steps;
  steps.model = {{"a", {37, 61}, ElementType::f32, parse_codec("int8:round=stochastic")},
                 {"b", {900}, ElementType::bf16, parse_codec("int4:round=stochastic")},
                 {"drawn", {800}, ElementType::f32, parse_codec("randomk:ratio=0.1")}};
  steps.options.seed = 3;
  const int ranks = std::min(3, most_ranks());
  const DeviceReduce twice = [&](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    Gradients values(steps.model);
    values.fill_bell(static_cast<std::uint64_t>(session.rank()) + session.steps());
    DeviceGradients others(steps.model);
    others.upload(values, stream);
    session.all_reduce(others.pointers(), stream);
    session.rollback();
    session.synchronize();
    session.all_reduce(gradients.pointers(), stream);
  };
  ASSERT_TRUE(same_results(run_on_devices(steps, ranks, twice), steps.run(ranks)));
}

/// Of both stages, element by element.
TEST_F(CudaSession, ResidualsAreThoseOfHosts) {
  use_schedule(1);
  const int ranks = std::min(3, most_ranks());
  Steps steps;
  steps.options.plan.algorithm = Algorithm::two_shot;
  steps.options.plan.share_elements = 1 << 20;  // a single chunk, as on devices
  std::vector<std::vector<std::vector<float>>> on_hosts(static_cast<std::size_t>(ranks)),
      on_devices(static_cast<std::size_t>(ranks));
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
  steps.run(ranks);
  run_on_devices(steps, ranks, [&](cuda::Session& session, DeviceGradients& gradients, cudaStream_t stream) {
    if (session.steps() == 2) keep(session, on_devices[static_cast<std::size_t>(session.rank())]);
    session.all_reduce(gradients.pointers(), stream);
  });
  for (std::size_t rank = 0; rank < on_hosts.size(); ++rank) {
    ASSERT_EQ(on_hosts[rank].size(), steps.model.size() + 1);
    ASSERT_FALSE(on_hosts[rank].back().empty());
    ASSERT_EQ(on_devices[rank], on_hosts[rank]) << "rank " << rank;
  }
}

}  // namespace
}  // namespace tightwire::testing::cuda_same_as_host_session_test
