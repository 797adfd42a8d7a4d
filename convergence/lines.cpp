#include "lines.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace convergence {
namespace {

using Json = nlohmann::ordered_json;

void print(const Json& json) { std::cout << json.dump() + "\n" << std::flush; }

/// JSON has no infinities and no NaN; a number that is not there reads as one that is not finite.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

void add(Json& json, const Evaluated& state, bool feedback_promised) {
  json["metric"] = number(state.evaluation.metric);
  json["evaluation_loss"] = number(state.evaluation.loss);
  json["bytes"] = state.sent_bytes;
  json["gradient_bytes"] = state.gradient_bytes;
  json["differing_ranks"] = state.differing_ranks;
  json["update_error"] = number(state.balance.update_error);
  if (feedback_promised) json["lost"] = number(state.balance.lost);
  json["flushed_share"] = number(state.balance.flushed_share);
  json["norm_ratio"] = number(state.balance.norm_ratio);
}

}  // namespace

Lines::Lines(const Options& options, const TaskDescription& task, bool feedback_promised)
    : feedback_promised_(feedback_promised), sample_path_(options.parameters) {
  if (!sample_path_.empty()) {
    sample_.emplace(sample_path_, std::ios::binary | std::ios::trunc);
    if (!*sample_) throw std::runtime_error(sample_path_ + " cannot be written");
  }
  print({{"task", task.name},
         {"codec", options.codec},
         {"control", options.control},
         {"seed", options.seed},
         {"ranks", options.ranks},
         {"steps", options.steps},
         {"optimizer", options.optimizer},
         {"learning_rate", options.learning_rate},
         {"metric_name", task.metric},
         {"higher_is_better", task.higher_is_better}});
}

void Lines::step(std::size_t step, double loss, std::uint64_t sent_bytes) const {
  print({{"step", step}, {"loss", number(loss)}, {"bytes", sent_bytes}});
}

void Lines::evaluated(const Evaluated& state) const {
  Json json{{"step", state.step}};
  add(json, state, feedback_promised_);
  print(json);
}

void Lines::parameters(std::vector<NamedParameter>& parameters) {
  if (!sample_) return;
  constexpr std::size_t kMost = 16'384;
  std::size_t all = 0;
  for (const NamedParameter& parameter : parameters) all += static_cast<std::size_t>(parameter.value.numel());
  const std::size_t stride = (all + kMost - 1) / kMost;
  std::size_t at = 0;
  std::vector<float> sample;
  for (const NamedParameter& parameter : parameters) {
    const float* values = parameter.value.data_ptr<float>();
    for (std::int64_t i = 0; i < parameter.value.numel(); ++i)
      if (at++ % stride == 0) sample.push_back(values[i]);
  }
  sample_->write(reinterpret_cast<const char*>(sample.data()),
                 static_cast<std::streamsize>(sample.size() * sizeof(float)));
  if (!sample_->flush()) throw std::runtime_error(sample_path_ + " cannot be written");
}

void Lines::final(const Evaluated& state, double seconds) const {
  Json json{{"final", true}, {"step", state.step}};
  add(json, state, feedback_promised_);
  json["seconds"] = seconds;
  print(json);
}

}  // namespace convergence
