#include "plan.hpp"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <tightwire/core_codecs.hpp>

#include "bench_rows.hpp"
#include "calibration_file.hpp"
#include "forecast.hpp"
#include "model_file.hpp"

namespace tightwire::tool {
namespace {

struct PlanArguments {
  std::string model;
  std::uint64_t bytes = 0;
  std::vector<int> ranks = {8, 64, 1024, 16384};
  std::vector<int> per_node = {1, 4, 8};
  std::vector<std::string> codecs = {"exact", "bf16", "int8", "int4", "topk:ratio=0.01", "powersgd:rank=4"};
  double compute_ms = 0;
  std::string calibration;
  double across_gbit = 0, across_latency_us = -1, inside_gbit = 80, inside_latency_us = 2, message_us = -1;
  std::uint64_t bucket_bytes = SessionOptions{}.bucket_bytes;
  bool json = false;
};

Calibration costs_of(const PlanArguments& arguments) {
  Calibration calibration;
  if (!arguments.calibration.empty()) {
    calibration = read_calibration(arguments.calibration);
  } else {
    if (arguments.across_gbit <= 0)
      throw Error(Errc::invalid_argument, "give the link's rate by --across-gbit, or --calibration");
    calibration.costs = costs_here(arguments.codecs);
    calibration.link = {20e-6, 1e-6, 1, 1};
  }
  LinkCost& link = calibration.link;
  if (arguments.across_gbit > 0) link.bytes_per_second = arguments.across_gbit / 8e-9;
  if (arguments.across_latency_us >= 0) link.latency_seconds = 1e-6 * arguments.across_latency_us;
  if (arguments.message_us >= 0) link.message_seconds = 1e-6 * arguments.message_us;
  return calibration;
}

std::vector<Parameter> parameters_of(const PlanArguments& arguments) {
  if (!arguments.model.empty()) return read_model(arguments.model);
  if (arguments.bytes == 0) throw Error(Errc::invalid_argument, "give a model's file, or --bytes");
  return {{.name = "gradient", .shape = matrix_of(std::max<std::size_t>(arguments.bytes / sizeof(float), 1))}};
}

std::string advice_text(const Advice& advice) {
  const Forecast &best = advice.forecasts[advice.best], &exact = advice.forecasts[advice.exact];
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  const auto name = [](const Forecast& f) { return f.codec + (f.by_levels ? " by levels" : ""); };
  if (!advice.compress) {
    text << "use " << name(exact) << ": do not compress";
    text << (exact.step.communication_share() < 0.05
                 ? ", the step hardly waits for communication"
                 : ", no codec makes the step faster by a twentieth (the cost of codecs, or latency, is what remains)");
  } else {
    text << "use " << name(best) << ": " << exact.step.seconds / best.step.seconds << " x as fast a step as "
         << name(exact);
  }
  return text.str();
}

void print_table(const Cluster& cluster, const Advice& advice) {
  std::cout << '\n'
            << cluster.ranks << " ranks, " << cluster.per_node << " per node\n"
            << std::left << std::setw(26) << "scheme" << std::setw(11) << "form" << std::right << std::setw(12)
            << "comm ms" << std::setw(12) << "step ms" << std::setw(9) << "share" << std::setw(13) << "MB per rank"
            << std::setw(13) << "MB per node" << std::setw(11) << "messages" << std::setw(10) << "vs exact" << '\n';
  for (std::size_t i = 0; i < advice.forecasts.size(); ++i) {
    const Forecast& f = advice.forecasts[i];
    std::cout << std::left << std::setw(26) << f.codec << std::setw(11) << (f.by_levels ? "by levels" : "flat")
              << std::right << std::fixed << std::setprecision(2) << std::setw(12) << 1e3 * f.step.communication_seconds
              << std::setw(12) << 1e3 * f.step.seconds << std::setprecision(0) << std::setw(7)
              << 100 * f.step.communication_share() << " %" << std::setprecision(2) << std::setw(13)
              << 1e-6 * f.rank_bytes << std::setw(13) << 1e-6 * f.node_bytes << std::setprecision(0) << std::setw(11)
              << f.messages << std::setprecision(2) << std::setw(10)
              << advice.forecasts[advice.exact].step.seconds / f.step.seconds << (i == advice.best ? "  *" : "")
              << '\n';
  }
  std::cout << advice_text(advice) << '\n';
}

nlohmann::ordered_json as_json(const Cluster& cluster, const Advice& advice) {
  nlohmann::ordered_json json = {{"ranks", cluster.ranks}, {"per_node", cluster.per_node}};
  for (const Forecast& f : advice.forecasts)
    json["schemes"].push_back({{"codec", f.codec},
                               {"by_levels", f.by_levels},
                               {"communication_seconds", f.step.communication_seconds},
                               {"step_seconds", f.step.seconds},
                               {"communication_share", f.step.communication_share()},
                               {"rank_bytes", f.rank_bytes},
                               {"node_bytes", f.node_bytes},
                               {"messages", f.messages}});
  json["use"] = {{"codec", advice.forecasts[advice.best].codec},
                 {"by_levels", advice.forecasts[advice.best].by_levels},
                 {"compress", advice.compress},
                 {"why", advice_text(advice)}};
  return json;
}

int run_plan(PlanArguments arguments) {
  const std::vector<Parameter> parameters = parameters_of(arguments);
  for (const std::string& codec : arguments.codecs)
    if (parse_codec(codec).automatic())
      throw Error(Errc::invalid_argument, "auto is what a Session chooses by this model; name codecs to compare");
  if (std::find(arguments.codecs.begin(), arguments.codecs.end(), "exact") == arguments.codecs.end())
    arguments.codecs.insert(arguments.codecs.begin(), "exact");
  const Calibration calibration = costs_of(arguments);
  SessionOptions options;
  options.bucket_bytes = arguments.bucket_bytes;
  double elements = 0;
  for (const Parameter& parameter : parameters) {
    double count = 1;
    for (const std::int64_t extent : parameter.shape) count *= static_cast<double>(extent);
    elements += count;
  }
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!arguments.json)
    std::cout << std::fixed << std::setprecision(2) << parameters.size() << " parameters of " << 1e-6 * elements
              << " million elements, " << arguments.compute_ms << " ms to compute a step; across nodes "
              << 8e-9 * calibration.link.bytes_per_second << " Gbit/s, " << 1e6 * calibration.link.latency_seconds
              << " us, " << 1e6 * calibration.link.message_seconds << " us per message; inside "
              << arguments.inside_gbit << " Gbit/s, " << arguments.inside_latency_us << " us; codecs "
              << (arguments.calibration.empty() ? "as measured on this CPU" : "as in " + arguments.calibration) << '\n';
  for (const int ranks : arguments.ranks)
    for (const int per_node : arguments.per_node) {
      if (per_node > ranks || ranks % per_node != 0) continue;
      Cluster cluster{ranks, per_node, calibration.link, calibration.link};
      cluster.inside.bytes_per_second = arguments.inside_gbit / 8e-9;
      cluster.inside.latency_seconds = 1e-6 * arguments.inside_latency_us;
      const Advice advice =
          forecast(parameters, arguments.codecs, options, cluster, calibration.costs, 1e-3 * arguments.compute_ms);
      arguments.json ? all.push_back(as_json(cluster, advice)) : print_table(cluster, advice);
    }
  if (arguments.json) std::cout << all.dump(1) << '\n';
  return std::cout ? 0 : 1;
}

void add_options(CLI::App& plan, PlanArguments& arguments) {
  plan.add_option("model", arguments.model, "Parameters: safetensors, JSON, lines \"name 64x3x7x7\", or a description");
  plan.add_option("--bytes", arguments.bytes, "In place of a model: one matrix of so many bytes of fp32")
      ->transform(CLI::AsSizeValue(false));
  plan.add_option("--ranks", arguments.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(2, 16384));
  plan.add_option("--per-node", arguments.per_node, "Ranks per node, which share its link")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  plan.add_option("-c,--codecs", arguments.codecs, "Codecs to compare, separated by spaces");
  plan.add_option("--compute-ms", arguments.compute_ms, "Forward and backward pass; buckets follow the last two thirds")
      ->check(CLI::NonNegativeNumber);
  plan.add_option("--calibration", arguments.calibration, "What tightwire bench --calibrate wrote");
  plan.add_option("--across-gbit", arguments.across_gbit, "Rate of a node's link, Gbit/s")->check(CLI::PositiveNumber);
  plan.add_option("--across-latency-us", arguments.across_latency_us, "Its latency")->check(CLI::NonNegativeNumber);
  plan.add_option("--message-us", arguments.message_us, "What a message costs its sender")
      ->check(CLI::NonNegativeNumber);
  plan.add_option("--inside-gbit", arguments.inside_gbit, "Rate of a rank's link inside its node")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  plan.add_option("--inside-latency-us", arguments.inside_latency_us, "Its latency")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  plan.add_option("--bucket-bytes", arguments.bucket_bytes, "SessionOptions::bucket_bytes")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  plan.add_flag("--json", arguments.json, "As JSON");
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  CLI::App* plan = app.add_subcommand("plan", "Predict a training step with each scheme, and tell what to use");
  const auto arguments = std::make_shared<PlanArguments>();
  add_options(*plan, *arguments);
  plan->footer(
      "Examples: tightwire plan model.safetensors --across-gbit 25 --compute-ms 120 --ranks 8,64 --per-node 8\n"
      "          tightwire bench -n 2 --calibrate here.json && tightwire plan --bytes 100M --calibration here.json");
  plan->callback([arguments, &status] {
    try {
      status = run_plan(*arguments);
    } catch (const Error& error) {
      std::cerr << std::string("tightwire plan: ") + error.what() + "\n";
      status = error.code() == Errc::invalid_argument ? 2 : 1;
    }
  });
}

}  // namespace tightwire::tool
