#include "plan.hpp"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <iterator>
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
  std::vector<std::string> codecs;  // those of kComparedCodecs whose costs are known, where none are named
  double compute_ms = 0;
  std::string calibration;
  double across_gbit = 0, across_latency_us = -1, message_us = -1, overlap = -1;
  double inside_gbit = 0, inside_latency_us = -1, inside_message_us = -1, inside_overlap = -1;
  std::uint64_t bucket_bytes = SessionOptions{}.bucket_bytes;
  bool memory = false;
  bool json = false;
};

/// What is planned with.
struct Plan {
  std::vector<std::string> codecs, left_out;
  CodecCosts costs;
  LinkCost inside, across;
  int ranks_per_core = 0;
};

/// Codecs to compare: of those that were not named, the ones whose costs are known.
void choose_codecs(const PlanArguments& arguments, Plan& plan) {
  plan.codecs = arguments.codecs.empty() ? kComparedCodecs : arguments.codecs;
  for (const std::string& codec : plan.codecs)
    if (parse_codec(codec).automatic())
      throw Error(Errc::invalid_argument, "auto is what a Session chooses by this model; name codecs to compare");
  if (std::find(plan.codecs.begin(), plan.codecs.end(), "exact") == plan.codecs.end())
    plan.codecs.insert(plan.codecs.begin(), "exact");
  if (arguments.calibration.empty()) return;
  const auto unknown = [&](const std::string& codec) {
    return !plan.costs.knows(detail::cost_name(parse_codec(codec)));
  };
  std::copy_if(plan.codecs.begin(), plan.codecs.end(), std::back_inserter(plan.left_out), unknown);
  plan.codecs.erase(std::remove_if(plan.codecs.begin(), plan.codecs.end(), unknown), plan.codecs.end());
  const bool exact = std::find(plan.codecs.begin(), plan.codecs.end(), "exact") != plan.codecs.end();
  if (!exact || (!arguments.codecs.empty() && !plan.left_out.empty()))
    throw Error(Errc::invalid_argument, "calibration \"" + arguments.calibration + "\" has no cost of " +
                                            plan.left_out.front() + "; name it to tightwire bench --calibrate");
}

/// Whether some of what is asked for has ranks on several nodes.
bool leaves_nodes(const PlanArguments& arguments) {
  return *std::max_element(arguments.ranks.begin(), arguments.ranks.end()) >
         *std::min_element(arguments.per_node.begin(), arguments.per_node.end());
}

Plan plan_of(const PlanArguments& arguments) {
  Plan plan;
  plan.across = {20e-6, 1e-6, 0, 1};
  plan.inside = {2e-6, 1e-6, 80 / 8e-9, 1};
  if (!arguments.calibration.empty()) {
    const Calibration calibration = read_calibration(arguments.calibration);
    plan.costs = calibration.costs;
    plan.ranks_per_core = calibration.ranks_per_core;
    if (calibration.shares_memory) {
      plan.inside = calibration.link;
    } else {
      plan.across = calibration.link;
      plan.inside.message_seconds = calibration.link.message_seconds;
      plan.inside.overlap = calibration.link.overlap;
    }
  }
  const auto set = [](double& figure, double given, double unit) {
    if (given >= 0) figure = given * unit;
  };
  if (arguments.across_gbit > 0) plan.across.bytes_per_second = arguments.across_gbit / 8e-9;
  set(plan.across.latency_seconds, arguments.across_latency_us, 1e-6);
  set(plan.across.message_seconds, arguments.message_us, 1e-6);
  set(plan.across.overlap, arguments.overlap, 1);
  if (arguments.inside_gbit > 0) plan.inside.bytes_per_second = arguments.inside_gbit / 8e-9;
  set(plan.inside.latency_seconds, arguments.inside_latency_us, 1e-6);
  set(plan.inside.message_seconds, arguments.inside_message_us, 1e-6);
  set(plan.inside.overlap, arguments.inside_overlap, 1);
  if (!(plan.across.bytes_per_second > 0) && leaves_nodes(arguments))
    throw Error(Errc::invalid_argument,
                arguments.calibration.empty()
                    ? "give the rate of the links between nodes by --across-gbit, or --calibration"
                    : "calibration \"" + arguments.calibration +
                          "\" is of ranks that share memory, and tells of no link between nodes: give its rate by "
                          "--across-gbit, or calibrate between nodes");
  choose_codecs(arguments, plan);
  if (arguments.calibration.empty()) plan.costs = costs_here(plan.codecs);
  return plan;
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
  const auto name = [](const Forecast& f) {
    return f.codec + (f.by_levels ? " by levels" : f.ring ? " in a ring" : "");
  };
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

void print_table(const Cluster& cluster, const Advice& advice, bool memory) {
  std::cout << '\n'
            << cluster.ranks << " ranks, " << cluster.per_node << " per node\n"
            << std::left << std::setw(26) << "scheme" << std::setw(11) << "form" << std::right << std::setw(12)
            << "comm ms" << std::setw(12) << "step ms" << std::setw(9) << "share" << std::setw(13) << "MB per rank"
            << std::setw(13) << "MB per node" << std::setw(11) << "messages" << std::setw(8) << "rounds"
            << std::setw(10) << "vs exact" << (memory ? "   MB frames" : "") << '\n';
  for (std::size_t i = 0; i < advice.forecasts.size(); ++i) {
    const Forecast& f = advice.forecasts[i];
    std::cout << std::left << std::setw(26) << f.codec << std::setw(11)
              << (f.by_levels ? "by levels"
                  : f.ring    ? "ring"
                              : "flat")
              << std::right << std::fixed << std::setprecision(2) << std::setw(12) << 1e3 * f.step.communication_seconds
              << std::setw(12) << 1e3 * f.step.seconds << std::setprecision(0) << std::setw(7)
              << 100 * f.step.communication_share() << " %" << std::setprecision(2) << std::setw(13)
              << 1e-6 * f.rank_bytes << std::setw(13) << 1e-6 * f.node_bytes << std::setprecision(0) << std::setw(11)
              << f.messages << std::setw(8) << f.rounds << std::setprecision(2) << std::setw(10)
              << advice.forecasts[advice.exact].step.seconds / f.step.seconds;
    if (memory) std::cout << std::setw(12) << 1e-6 * f.frame_bytes;
    std::cout << (i == advice.best ? "  *" : "") << '\n';
  }
  std::cout << advice_text(advice) << '\n';
}

nlohmann::ordered_json as_json(const Cluster& cluster, const Plan& plan, const Advice& advice) {
  nlohmann::ordered_json json = {{"ranks", cluster.ranks}, {"per_node", cluster.per_node}};
  if (!plan.left_out.empty()) json["left_out"] = plan.left_out;
  if (plan.ranks_per_core > 1) json["calibrated_ranks_per_core"] = plan.ranks_per_core;
  for (const Forecast& f : advice.forecasts) {
    json["schemes"].push_back({{"codec", f.codec},
                               {"by_levels", f.by_levels},
                               {"ring", f.ring},
                               {"communication_seconds", f.step.communication_seconds},
                               {"step_seconds", f.step.seconds},
                               {"communication_share", f.step.communication_share()},
                               {"rank_bytes", f.rank_bytes},
                               {"node_bytes", f.node_bytes},
                               {"messages", f.messages},
                               {"rounds", f.rounds}});
    if (f.frame_bytes != 0) json["schemes"].back()["frame_bytes"] = f.frame_bytes;
  }
  json["use"] = {{"codec", advice.forecasts[advice.best].codec},
                 {"by_levels", advice.forecasts[advice.best].by_levels},
                 {"ring", advice.forecasts[advice.best].ring},
                 {"compress", advice.compress},
                 {"why", advice_text(advice)}};
  return json;
}

std::string link_text(const LinkCost& link) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << 8e-9 * link.bytes_per_second << " Gbit/s, "
       << 1e6 * link.latency_seconds << " us, " << 1e6 * link.message_seconds << " us per message, overlap "
       << link.overlap;
  return text.str();
}

void print_head(const PlanArguments& arguments, const Plan& plan, const std::vector<Parameter>& parameters) {
  double elements = 0;
  for (const Parameter& parameter : parameters) {
    double count = 1;
    for (const std::int64_t extent : parameter.shape) count *= static_cast<double>(extent);
    elements += count;
  }
  std::cout << std::fixed << std::setprecision(2) << parameters.size() << " parameters of " << 1e-6 * elements
            << " million elements, " << arguments.compute_ms << " ms to compute a step\n"
            << "across nodes " << (plan.across.bytes_per_second > 0 ? link_text(plan.across) : "nothing") << "; inside "
            << link_text(plan.inside) << "; codecs "
            << (arguments.calibration.empty() ? "as measured on this CPU" : "as in " + arguments.calibration) << '\n';
  if (!plan.left_out.empty()) {
    std::cout << "left out, since the calibration does not know their costs:";
    for (const std::string& codec : plan.left_out) std::cout << ' ' << codec;
    std::cout << '\n';
  }
  if (plan.ranks_per_core > 1)
    std::cout << "calibrated with " << plan.ranks_per_core
              << " ranks to a core, which waited for each other: times are too long for ranks with a core each\n";
}

int run_plan(const PlanArguments& arguments) {
  const std::vector<Parameter> parameters = parameters_of(arguments);
  const Plan plan = plan_of(arguments);
  SessionOptions options;
  options.bucket_bytes = arguments.bucket_bytes;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!arguments.json) print_head(arguments, plan, parameters);
  bool any = false;
  std::string uneven;
  for (const int ranks : arguments.ranks)
    for (const int per_node : arguments.per_node) {
      if (ranks % per_node != 0) {
        uneven += (uneven.empty() ? "" : ", ") + std::to_string(ranks) + " ranks of " + std::to_string(per_node) +
                  " per node";
        continue;
      }
      any = true;
      const Cluster cluster{ranks, per_node, plan.inside, plan.across};
      Advice advice = forecast(parameters, plan.codecs, options, cluster, plan.costs, 1e-3 * arguments.compute_ms);
      if (arguments.memory) add_memory(advice, parameters, ranks);
      arguments.json ? all.push_back(as_json(cluster, plan, advice)) : print_table(cluster, advice, arguments.memory);
    }
  if (!any) {
    const auto list = [](const std::vector<int>& numbers) {
      std::string text;
      for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
      return text;
    };
    throw Error(Errc::invalid_argument, "--ranks " + list(arguments.ranks) + " are no multiple of --per-node " +
                                            list(arguments.per_node) + ": nothing to plan");
  }
  if (!uneven.empty()) std::cerr << "tightwire plan: left out, since nodes would not be full: " + uneven + "\n";
  if (arguments.json) std::cout << all.dump(1) << '\n';
  if (!std::cout.flush()) throw Error(Errc::transport, "standard output cannot be written");
  return 0;
}

void add_options(CLI::App& plan, PlanArguments& arguments) {
  CLI::Option* const model = plan.add_option(
      "model", arguments.model, "Parameters: safetensors, JSON, lines \"name 64x3x7x7\", or a description");
  plan.add_option("--bytes", arguments.bytes, "In place of a model: one matrix of so many bytes of fp32")
      ->transform(CLI::AsSizeValue(false))
      ->excludes(model);
  plan.add_option("--ranks", arguments.ranks, "Numbers of ranks")->delimiter(',')->check(CLI::Range(2, 16384));
  plan.add_option("--per-node", arguments.per_node, "Ranks per node, which share its link")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  plan.add_option(
      "-c,--codecs", arguments.codecs,
      "Codecs to compare, separated by spaces; by default those that the calibration knows of exact bf16 int8 "
      "int4 topk:ratio=0.01 powersgd:rank=4");
  plan.add_option("--compute-ms", arguments.compute_ms, "Forward and backward pass; buckets follow the last two thirds")
      ->check(CLI::NonNegativeNumber);
  plan.add_option("--calibration", arguments.calibration, "What tightwire bench --calibrate wrote");
  plan.add_option("--across-gbit", arguments.across_gbit, "Rate of a node's link, Gbit/s")->check(CLI::PositiveNumber);
  plan.add_option("--across-latency-us", arguments.across_latency_us, "Its latency")->check(CLI::NonNegativeNumber);
  plan.add_option("--message-us", arguments.message_us, "What a message costs its sender")
      ->check(CLI::NonNegativeNumber);
  plan.add_option(
          "--overlap", arguments.overlap,
          "Between nodes: how much of codec and transfer hides behind the other, 1 where a network card moves the "
          "bytes")
      ->check(CLI::Range(0.0, 1.0));
  plan.add_option("--inside-gbit", arguments.inside_gbit,
                  "Rate of a rank's link inside its node; 80, or as calibrated where ranks shared memory")
      ->check(CLI::PositiveNumber);
  plan.add_option("--inside-latency-us", arguments.inside_latency_us, "Its latency; 2, or as calibrated")
      ->check(CLI::NonNegativeNumber);
  plan.add_option("--inside-message-us", arguments.inside_message_us, "What a message costs there; as calibrated")
      ->check(CLI::NonNegativeNumber);
  plan.add_option("--inside-overlap", arguments.inside_overlap,
                  "Inside nodes; 0 where the core that encodes moves the bytes. As calibrated, or 1")
      ->check(CLI::Range(0.0, 1.0));
  plan.add_option("--bucket-bytes", arguments.bucket_bytes, "SessionOptions::bucket_bytes")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  plan.add_flag("--memory", arguments.memory,
                "Also what frames take of a rank's memory, which is taken here to see, a bucket at a time");
  plan.add_flag("--json", arguments.json, "As JSON");
}

}  // namespace

void add_plan(CLI::App& app, int& status) {
  CLI::App* plan = app.add_subcommand("plan", "Predict a training step with each scheme, and tell what to use");
  const auto arguments = std::make_shared<PlanArguments>();
  add_options(*plan, *arguments);
  plan->footer(
      "Examples: tightwire plan model.safetensors --across-gbit 25 --compute-ms 120 --ranks 8,64 --per-node 8\n"
      "          tightwire bench -n 2 --calibrate here.json &&\n"
      "          tightwire plan --bytes 100M --calibration here.json --across-gbit 25");
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
