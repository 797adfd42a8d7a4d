// The largest elements, chosen on devices: buffers, residuals, bytes and counts are those of a Session on hosts.
#include <algorithm>
#include <limits>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "same_story.hpp"

namespace tightwire::testing::cuda_chosen_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// Of every type, with exact and lossy values; no elements, one, fewer than a tile and several; chosen from by
/// themselves and together; few, nearly all and all of them; beside what is sent otherwise.
Model chosen_model(bool feedback = true) {
  const std::string more = feedback ? "" : ",without-feedback";
  Model model;
  const auto add = [&](std::int64_t count, ElementType type, const std::string& codec) {
    model.push_back({std::to_string(model.size()) + " " + codec, {count}, type, parse_codec(codec)});
  };
  add(1003, ElementType::f32, "topk:ratio=0.05" + more);
  add(4099, ElementType::bf16, "topk:ratio=0.1" + more + "+int8");
  add(700, ElementType::f32, "int4");
  add(900, ElementType::f16, "topk:ratio=0.2" + more + "+hadamard:64+int4");
  add(0, ElementType::f32, "topk:ratio=0.5" + more);
  add(1, ElementType::f32, "topk:ratio=0.01" + more);
  add(7, ElementType::f32, "topk:ratio=1" + more + "+bf16");
  add(300, ElementType::bf16, "topk:ratio=1" + more);
  add(411, ElementType::f32, "topk:ratio=0.99" + more);
  add(257, ElementType::f16, "topk:ratio=0.9" + more + "+int8");
  add(2048, ElementType::f32, "topk:ratio=0.02,per-bucket" + more);
  add(33, ElementType::bf16, "topk:ratio=0.02,per-bucket" + more);
  add(17'001, ElementType::f32, "topk:ratio=0.01,union,warm-up=3" + more);
  add(800, ElementType::f32, "randomk:ratio=0.1" + more);
  return model;
}

/// A spread of magnitudes; then few of them, so that equals must be told by their places, zeros among them, and more
/// that is not finite than may be chosen, to be rolled back; a NaN; sums that fp16 cannot hold.
void fill(Gradients& gradients, int rank, int step) {
  FastRandom random(Steps::seed(rank, step));
  if (step == 1)
    gradients.fill([&](std::size_t, std::size_t) { return static_cast<float>(random.below(5)) - 2.0f; });
  else
    gradients.fill_wide(Steps::seed(rank, step), 6);
  if (step == 1)
    for (std::size_t i = 0; i < 900; i += rank == 0 ? 1 : 7) gradients.set(3, i, i % 2 == 0 ? kInfinity : -kInfinity);
  if (step == 2 && rank == 0)
    for (const std::size_t i : {17u, 400u}) gradients.set(0, i, kNaN);
  if (step == 2)
    for (std::size_t i = 0; i < 100; ++i) gradients.set(10, i, i % 3 == 0 ? kNaN : kInfinity);
  if (step >= 3)
    for (std::size_t i = 0; i < 900; ++i) gradients.set(3, i, 65'000.0f);
}

TEST_F(CudaSession, ChosenElementsAsOnHosts) {
  for (const Case& it : {Case{.ranks = 1}, Case{.ranks = 2, .schedule = 2}, Case{.ranks = 4, .schedule = 1},
                         Case{.ranks = 3, .algorithm = Algorithm::one_shot, .schedule = 3},
                         Case{.ranks = 2, .algorithm = Algorithm::automatic, .bucket_bytes = 8000},
                         Case{.ranks = 2, .feedback = false}, Case{.ranks = 2, .rollback = false, .schedule = 1}}) {
    if (it.ranks > most_ranks()) continue;
    SCOPED_TRACE(it.feedback ? it.rollback ? "" : "without rollback" : "without feedback");
    EXPECT_NE(expect_same_as_on_hosts(it, chosen_model(it.feedback), fill), 0u);
  }
}

/// By the threshold of a sample where it is about right, which of many equal elements it is not.
TEST_F(CudaSession, SampledElementsAsOnHosts) {
  const auto model = [](const std::string& more) {
    return Model{{"a", {9001}, ElementType::f32, parse_codec("topk:ratio=0.05,sampled" + more)},
                 {"b", {2500}, ElementType::bf16, parse_codec("topk:ratio=0.2,sampled,warm-up=2" + more)},
                 {"c", {700}, ElementType::f16, parse_codec("topk:ratio=0.3,sampled" + more + "+int8")},
                 {"d", {4000}, ElementType::f32, parse_codec("topk:ratio=0.1,sampled,per-bucket" + more)},
                 {"e", {31}, ElementType::f32, parse_codec("topk:ratio=0.1,sampled,per-bucket" + more)},
                 {"exact", {900}, ElementType::f32, parse_codec("topk:ratio=0.1" + more)}};
  };
  const auto sampled = [](Gradients& gradients, int rank, int step) {
    gradients.fill_wide(Steps::seed(rank, step), 6);
    FastRandom random(Steps::seed(rank, step));
    for (std::size_t i = 0; i < 9001 && step == 1; ++i) gradients.set(0, i, static_cast<float>(random.below(3)) - 1.0f);
    for (std::size_t i = 0; i < 700 && step >= 2; ++i) gradients.set(2, i, i % 3 == 0 ? kNaN : kInfinity);
    for (std::size_t i = 0; i < 4000 && step == 3; ++i) gradients.set(3, i, i % 100 == 0 ? 1.0f : 0.0f);
  };
  const int ranks = std::min(2, most_ranks());
  for (const bool rollback : {true, false})
    expect_same_as_on_hosts({.ranks = ranks, .rollback = rollback, .schedule = 2, .steps = 5}, model(""), sampled);
  expect_same_as_on_hosts({.ranks = ranks, .feedback = false, .schedule = 1}, model(",without-feedback"), sampled);
  Case with_momentum{.ranks = ranks, .schedule = 1};
  with_momentum.momentum = {.factor = 0.9f, .nesterov = true, .masking = true, .optimizer_momentum = 0.0};
  expect_same_as_on_hosts(with_momentum, model(""), sampled);
}

/// Of what is chosen before it is chosen, of blocks and matrices after they are summed.
TEST_F(CudaSession, MomentaAsOnHosts) {
  Model model = chosen_model();
  model.back() = {"matrix", {30, 40}, ElementType::bf16, parse_codec("powersgd:rank=2")};
  for (const bool masking : {true, false}) {
    SCOPED_TRACE(masking);
    Case asked{.ranks = std::min(3, most_ranks()), .rollback = masking, .schedule = 2, .steps = 5};
    asked.momentum = {.factor = 0.9f, .nesterov = !masking, .masking = masking, .optimizer_momentum = 0.0};
    EXPECT_NE(expect_same_as_on_hosts(asked, model, fill), 0u);
  }
}

TEST_F(CudaSession, StagedChosenElementsAsOnHosts) {
  const int ranks = std::min(3, most_ranks());
  EXPECT_NE(expect_same_as_on_hosts({.ranks = ranks, .schedule = 3}, chosen_model(), fill, by_staging), 0u);
}

/// Where all that is large is in one place, ranges are cut anew.
TEST_F(CudaSession, ChosenElementsThatGatherAsOnHosts) {
  const Model model = {{"a", {6000}, ElementType::f32, parse_codec("topk:ratio=0.1")},
                       {"b", {3000}, ElementType::f32, parse_codec("topk:ratio=0.1+int8")}};
  const auto gathered = [](Gradients& gradients, int rank, int step) {
    FastRandom random(Steps::seed(rank, step));
    gradients.fill([&](std::size_t p, std::size_t i) { return random.bell() * (p == 0 && i < 700 ? 100.0f : 1e-3f); });
  };
  for (const std::size_t schedule : {0u, 2u})
    expect_same_as_on_hosts({.ranks = std::min(4, most_ranks()), .schedule = schedule}, model, gathered);
}

/// All magnitudes alike, nothing but zeros, and a k-th that is zero.
TEST_F(CudaSession, TiesAndZerosAsOnHosts) {
  const Model model = {{"a", {5000}, ElementType::f32, parse_codec("topk:ratio=0.1")},
                       {"b", {2500}, ElementType::bf16, parse_codec("topk:ratio=0.3")}};
  const auto alike = [](Gradients& gradients, int rank, int step) {
    gradients.fill([&](std::size_t p, std::size_t i) {
      if (step == 0) return 0.0f;
      if (step == 1 || p == 1) return (i + static_cast<std::size_t>(rank)) % 2 == 0 ? 1.5f : -1.5f;
      return i % 100 == static_cast<std::size_t>(rank) ? 2.0f : -0.0f;
    });
  };
  for (std::size_t schedule = 0; schedule < schedules().size(); ++schedule) {
    SCOPED_TRACE(schedules()[schedule]);
    expect_same_as_on_hosts({.ranks = std::min(2, most_ranks()), .schedule = schedule, .steps = 3}, model, alike);
  }
}

/// Around what a block takes, which all but the last elements fill.
TEST_F(CudaSession, ChosenElementsAtTheEdgesOfTilesAsOnHosts) {
  Model model;
  for (const std::int64_t count : {31, 255, 257, 2047, 2048, 2049, 16'383, 16'385})
    model.push_back({std::to_string(count), {count}, ElementType::f32, parse_codec("topk:ratio=0.03")});
  const auto late = [](Gradients& gradients, int rank, int step) {
    gradients.fill_wide(Steps::seed(rank, step), 6);
    for (std::size_t p = 0; p < 8; ++p) gradients.set(p, gradients.values(p).size() - 1, 1000.0f);
  };
  expect_same_as_on_hosts({.ranks = 1, .rollback = false, .schedule = 2, .steps = 2}, model, late);
}

/// What is chosen, and no more, is in memory of the host.
TEST_F(CudaSession, GradientsOfChosenElementsStayOnTheDevice) {
  use_schedule(0);
  const Model model = {{"a", {30'000}, ElementType::f32, parse_codec("topk:ratio=0.01")}};
  const int ranks = std::min(2, most_ranks());
  for (const Join& join : {Join(by_nccl), Join(by_staging)})
    run_all_devices(
        ranks,
        [&](const std::shared_ptr<cuda::Transport>& transport) {
          const auto session = sealed_device_session(transport, model);
          EXPECT_NE(session->transport().find("; chosen elements through the host"), std::string::npos);
          Gradients gradients(model);
          gradients.fill_bell(static_cast<std::uint64_t>(transport->rank()) + 1);
          DeviceGradients on_device(model);
          const TestStream stream;
          on_device.upload(gradients, stream);
          const std::uint64_t before = session->staged_bytes();
          session->all_reduce(on_device.pointers(), stream);
          session->commit();
          session->synchronize();
          const Statistics& total = session->total();
          EXPECT_GE(session->staged_bytes() - before, 300 * 8u + total.sent_bytes + total.received_bytes);
          EXPECT_LT(session->staged_bytes() - before, total.gradient_bytes / 8);
        },
        join);
}

}  // namespace
}  // namespace tightwire::testing::cuda_chosen_test
