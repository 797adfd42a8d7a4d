#include "run.hpp"

#include <chrono>
#include <iostream>
#include <memory>

#include <tightwire/error.hpp>

#include "launcher/launcher.hpp"

namespace tightwire::tool {
namespace {

struct RunArguments {
  int ranks = 0;
  bool label = false;
  bool quiet = false;
  std::string wrapper;
  double grace_seconds = 10;
  double kill_after_seconds = 3;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// The command is what follows "--", or what follows the options when there is no "--" before it.
std::vector<std::string> command_of(const CLI::App& run, const std::vector<std::string>& after_dashes) {
  std::vector<std::string> command = run.remaining();
  if (command.empty())
    command = after_dashes;
  else if (command.front().starts_with('-'))
    throw CLI::ExtrasError({command.front()});
  else if (!after_dashes.empty()) {
    command.push_back("--");
    command.insert(command.end(), after_dashes.begin(), after_dashes.end());
  }
  if (command.empty()) throw CLI::RequiredError("a program after --");
  return command;
}

int run_job(const RunArguments& arguments, std::vector<std::string> command) {
  LaunchOptions options{.ranks = arguments.ranks,
                        .command = std::move(command),
                        .wrapper = CLI::detail::split_up(arguments.wrapper),
                        .prefix_output = arguments.label,
                        .grace = milliseconds(arguments.grace_seconds),
                        .kill_after = milliseconds(arguments.kill_after_seconds),
                        .report = {}};
  if (!arguments.quiet) options.report = [](const std::string& line) { std::cerr << "tightwire: " + line + "\n"; };
  try {
    return launch(options);
  } catch (const Error& error) {
    std::cerr << std::string("tightwire run: ") + error.what() + "\n";
    return kCannotRun;
  }
}

}  // namespace

void add_run(CLI::App& app, const std::vector<std::string>& after_dashes, int& status) {
  CLI::App* run = app.add_subcommand("run", "Run a program as the ranks of one job on this machine");
  const auto arguments = std::make_shared<RunArguments>();
  constexpr double kDay = 86'400;
  run->add_option("-n,--ranks", arguments->ranks, "Number of ranks")->required()->check(CLI::Range(1, 4096));
  run->add_flag("--label", arguments->label, "Put \"[rank] \" before every line of output");
  run->add_option("--wrapper", arguments->wrapper,
                  "Put before the program, {rank} replaced: \"ip netns exec node{rank}\"");
  run->add_option("--grace", arguments->grace_seconds, "Seconds the others may go on after a rank has failed")
      ->check(CLI::Range(0.0, kDay))
      ->capture_default_str();
  run->add_option("--kill-after", arguments->kill_after_seconds, "Seconds from SIGTERM to SIGKILL for a rank")
      ->check(CLI::Range(0.0, kDay))
      ->capture_default_str();
  run->add_flag("--quiet", arguments->quiet, "Do not tell how ranks ended");
  run->footer(
      "Example: tightwire run -n 4 -- ./train --epochs 3\n\n"
      "The ranks find each other by tightwire::rendezvous::environment(). The exit status is 0 when every rank\n"
      "returned 0, else that of the rank that failed first (128 + n for signal n), 125 when the job could not be run.");
  run->prefix_command();
  run->callback(
      [run, arguments, &after_dashes, &status] { status = run_job(*arguments, command_of(*run, after_dashes)); });
}

}  // namespace tightwire::tool
