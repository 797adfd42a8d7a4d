#include "controls.hpp"

#include <functional>
#include <stdexcept>

namespace convergence {
namespace {

struct Entry {
  ControlDescription description;
  std::function<std::unique_ptr<Control>()> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{"none", false, "nothing"}, [] { return std::make_unique<Control>(); }},
      {{"reversed-sum", false, "ranks take each other's data, so that the sum is formed in another order"},
       make_reversed_sum},
      {{"rebuilt", false, "every 20 steps the Session is made anew, and its state saved and restored"}, make_rebuilt},
      {{"independent-noise", false, "stochastic rounding to a few levels, every rank with its own random numbers"},
       make_independent_noise},
      {{"feedback-off", true, "what the codec drops is forgotten"}, make_feedback_off},
      {{"feedback-twice", true, "the trainer adds the residual that the Session adds as well"}, make_feedback_twice},
      {{"momentum-twice", true, "momentum before the reduction on top of the optimizer's"}, make_momentum_twice},
      {{"replicas-differ", true, "the last rank decodes one unit in the last place higher"}, make_replicas_differ},
      {{"sum-not-mean", true, "gradients are added up and not divided"}, make_sum_not_mean},
      {{"stale-residual", true, "buckets are rebuilt every 20 steps, and residuals go to other parameters"},
       make_stale_residual},
      {{"shared-noise", true, "stochastic rounding with the same random numbers on all ranks"}, make_shared_noise},
      {{"dropped-contribution", true, "one rank's gradient is lost in one of 50 steps"}, make_dropped_contribution},
      {{"unscaled-rate", true, "the learning rate of one rank is kept, as if there were no others"},
       make_unscaled_rate},
  };
  return all;
}

}  // namespace

const std::vector<ControlDescription>& controls() {
  static const std::vector<ControlDescription> all = [] {
    std::vector<ControlDescription> list;
    for (const Entry& entry : entries()) list.push_back(entry.description);
    return list;
  }();
  return all;
}

std::unique_ptr<Control> make_control(const std::string& name) {
  std::string known;
  for (const Entry& entry : entries()) {
    if (entry.description.name == name) return entry.make();
    known += (known.empty() ? "" : ", ") + entry.description.name;
  }
  throw std::invalid_argument("there is no control \"" + name + "\"; known are " + known);
}

}  // namespace convergence
