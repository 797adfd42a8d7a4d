// Matrices that are sent as factors, multiplied on devices: buffers, residuals, bytes and counts are those of a Session
// on hosts.
#include <algorithm>
#include <limits>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "same_story.hpp"

namespace tightwire::testing::cuda_low_rank_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Of every type; fewer rows and columns than a block of threads takes and more, and multiples of nothing; of ranks
/// that are orthonormalized one way and the other; beside what is sent otherwise.
Model matrices(bool feedback, const std::string& turn = "") {
  const std::string lost = feedback ? "" : ",without-feedback", more = turn + lost;
  const auto of = [&](const std::string& rank, const std::string& factors) {
    return parse_codec("powersgd:rank=" + rank + more + factors);
  };
  return {{"square", {70, 90}, ElementType::f32, of("4", "")},
          {"wide", {18, 1101}, ElementType::f32, of("2", "")},
          {"tall", {531, 36}, ElementType::f32, of("5", "")},
          {"conv", {64, 16, 3, 3}, ElementType::f16, of("7", "+int8")},
          {"bf16", {100, 57}, ElementType::bf16, of("4", "")},
          {"narrow", {40, 68}, ElementType::bf16, of("1", "+int4")},
          {"int8", {500}, ElementType::f32, Int8{}},
          {"topk", {900}, ElementType::f32, parse_codec("topk:ratio=0.1" + lost)}};
}

/// A NaN in a step that is rolled back; then one and an infinity on one rank; means that fp16 cannot hold.
void fill(Gradients& gradients, int rank, int step) {
  gradients.fill_wide(Steps::seed(rank, step), 6);
  if (step == 1) gradients.set(0, 17, kNaN);
  if (step == 2 && rank == 0) {
    gradients.set(1, 1033, std::numeric_limits<float>::infinity());
    gradients.set(4, 5, kNaN);
  }
  if (step == 3)
    for (std::size_t i = 0; i < 64 * 144; ++i) gradients.set(3, i, i / 144 % 2 == 0 ? 65'000.0f : -65'000.0f);
}

TEST_F(CudaSession, FactorsAsOnHosts) {
  for (const Case& it :
       {Case{.ranks = 1}, Case{.ranks = 2, .schedule = 2, .steps = 5},
        Case{.ranks = 3, .algorithm = Algorithm::one_shot, .schedule = 3},
        Case{.ranks = 2, .rollback = false, .schedule = 1}, Case{.ranks = 2, .feedback = false, .schedule = 2}}) {
    if (it.ranks > most_ranks()) continue;
    SCOPED_TRACE(it.feedback ? it.rollback ? "" : "without rollback" : "without feedback");
    EXPECT_NE(expect_same_as_on_hosts(it, matrices(it.feedback), fill), 0u);
  }
}

TEST_F(CudaSession, StagedFactorsInTurnAsOnHosts) {
  const Case asked{.ranks = std::min(3, most_ranks()), .schedule = 3, .steps = 5};
  EXPECT_NE(expect_same_as_on_hosts(asked, matrices(true, ",one-factor"), fill, by_staging), 0u);
}

/// By steps, and by the error; whole at first; what is exact goes by itself.
TEST_F(CudaSession, RanksOfFactorsThatChangeAsOnHosts) {
  for (const char* codec : {"powersgd:rank=2,rank=6@4,rank=1@7,start=2", "powersgd:rank=1-8,error=0.2"}) {
    SCOPED_TRACE(codec);
    use_schedule(1);
    Steps steps;
    steps.model = {{"a", {50, 60}, ElementType::f32, parse_codec(codec)},
                   {"b", {61, 47}, ElementType::bf16, parse_codec(codec)},
                   {"bias", {77}, ElementType::f32, parse_codec(codec)}};
    steps.steps = 12;
    const int ranks = std::min(2, most_ranks());
    ASSERT_TRUE(same_results(run_on_devices(steps, ranks), steps.run(ranks)));
  }
}

TEST_F(CudaSession, MatricesStayOnTheDevice) {
  use_schedule(0);
  const Model model = {{"a", {200, 150}, ElementType::f32, parse_codec("powersgd:rank=2")}};
  run_all_devices(std::min(2, most_ranks()), [&](const std::shared_ptr<cuda::Transport>& transport) {
    const auto session = sealed_device_session(transport, model);
    EXPECT_NE(session->transport().find("; factors through the host"), std::string::npos);
    reduce_once(*session, model);
    const std::uint64_t before = session->staged_bytes();
    DeviceGradients gradients(model);
    const TestStream stream;
    gradients.upload(Gradients(model), stream);
    cuda::Handle handle = session->start(0, gradients.pointers(), stream);
    EXPECT_THROW(session->sender_residual(0), Error);
    handle.wait(stream);
    session->commit();
    session->synchronize();
    EXPECT_EQ(session->sender_residual(0).size(), 200u * 150u);
    EXPECT_GE(session->staged_bytes() - before, 2 * 350 * 2 * sizeof(float));
    EXPECT_LT(session->staged_bytes() - before, session->total().gradient_bytes / 2 / 4);
  });
}

}  // namespace
}  // namespace tightwire::testing::cuda_low_rank_test
