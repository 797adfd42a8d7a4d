// Elements that are drawn at random, on devices: buffers, residuals and counts are those of a Session on hosts.
#include <algorithm>
#include <limits>

#include <tightwire/codec.hpp>
#include <tightwire/core_codecs.hpp>

#include "same_story.hpp"

namespace tightwire::testing::cuda_random_test {
namespace {

Model drawn_model(bool feedback) {
  const std::string more = feedback ? "" : ",without-feedback";
  Model model;
  const auto add = [&](std::int64_t count, ElementType type, const std::string& codec) {
    model.push_back({std::to_string(model.size()) + " " + codec, {count}, type, parse_codec(codec)});
  };
  add(1003, ElementType::f32, "randomk:ratio=0.05" + more);
  add(4099, ElementType::bf16, "randomk:ratio=0.1" + more + "+int8");
  add(700, ElementType::f32, "int4");
  add(900, ElementType::f16, "randomk:ratio=0.2" + more + "+hadamard:64+int4");
  add(0, ElementType::f32, "randomk:ratio=0.5" + more);
  add(7, ElementType::f32, "randomk:ratio=1" + more + "+bf16");
  return model;
}

/// Steps with numbers that are not finite in the second, which is rolled back; and at the end such that the mean of
/// what was kept is more than fp16 can hold.
void fill(Gradients& gradients, int rank, int step) {
  gradients.fill_wide(Steps::seed(rank, step), 6);
  if (step == 1)
    for (std::size_t i = 0; i < 900; i += rank == 0 ? 1 : 7)
      gradients.set(3, i, std::numeric_limits<float>::infinity());
  if (step == 2 && rank == 0) gradients.set(0, 17, std::numeric_limits<float>::quiet_NaN());
  if (step == 2 && rank == 0)
    for (std::size_t i = 0; i < 2000; i += 7) gradients.set(1, i, -std::numeric_limits<float>::infinity());
  if (step >= 2)
    for (std::size_t i = 0; i < 900; ++i) gradients.set(3, i, 65'000.0f);
}

TEST_F(CudaSession, DrawnElementsAsOnHosts) {
  for (const Case& it :
       {Case{.ranks = 1}, Case{.ranks = 2, .schedule = 2}, Case{.ranks = 3, .schedule = 1},
        Case{.ranks = 2, .algorithm = Algorithm::one_shot, .schedule = 3}, Case{.ranks = 2, .feedback = false}}) {
    if (it.ranks > most_ranks()) break;
    EXPECT_NE(expect_same_as_on_hosts(it, drawn_model(it.feedback), fill), 0u);
  }
}

}  // namespace
}  // namespace tightwire::testing::cuda_random_test
