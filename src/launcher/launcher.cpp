#include "launcher.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>

#include <tightwire/error.hpp>

#include "../rendezvous/errno_text.hpp"
#include "../rendezvous/proof.hpp"
#include "job_resources.hpp"
#include "output_relay.hpp"
#include "rank_process.hpp"

namespace tightwire {
namespace launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLookAnyway{500};
constexpr std::chrono::milliseconds kLastOutputLimit{200};
constexpr std::chrono::milliseconds kReactionLimit{1000};

class Job {
 public:
  explicit Job(const LaunchOptions& options) : options_(options) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  /// Only after an exception are there ranks left.
  ~Job() {
    signal_all(SIGKILL);
    for (const pid_t process : processes_) {
      if (process > 0) ::waitpid(process, nullptr, 0);
    }
  }

  int run() {
    for (int rank = 0; rank < options_.ranks && status_ == 0; ++rank) start(rank);
    while (is_any_running()) step(next_deadline());
    const auto until = Clock::now() + kLastOutputLimit;
    while (!relay_.is_finished()) {
      // A process that left its group may hold a pipe open for ever.
      if (Clock::now() >= until) relay_.stop_reading();
      step(Clock::now() + kLastOutputLimit);
      if (impatience_ > 1) break;
    }
    return status_;
  }

 private:
  void start(int rank);
  RankProgram program_of(int rank) const;
  void step(Clock::time_point until);
  void pass_on(int signal);
  void collect_ended();
  void on_end(std::size_t rank, int status);
  void fail(int status) { status_ = status_ == 0 ? status : status_; }
  void give_grace();
  void signal_all(int signal);
  std::string running_ranks() const;
  void act_when_due();
  Clock::time_point next_deadline() const;
  bool is_any_running() const {
    return std::any_of(processes_.begin(), processes_.end(), [](pid_t process) { return process > 0; });
  }
  void report(const std::string& line) const {
    if (options_.report) options_.report(line);
  }

  const LaunchOptions& options_;
  PrivateDirectory directory_;
  std::string key_ = rendezvous::to_hex(rendezvous::random_bytes(32));
  SignalInbox signals_;
  OutputRelay relay_;
  std::vector<pid_t> processes_;  ///< by rank; 0 once it has ended
  int status_ = 0;
  std::optional<Clock::time_point> exited_at_;  ///< when the rank ended whose exit made `status_`
  int impatience_ = 0;                          ///< how often we were asked to stop
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
};

std::string name_of_signal(int signal) {
  const char* const name = ::sigdescr_np(signal);
  return name != nullptr ? name : "unknown";
}

std::string replace_rank(std::string text, int rank) {
  constexpr std::string_view kPlace = "{rank}";
  for (auto at = text.find(kPlace); at != std::string::npos; at = text.find(kPlace, at)) {
    text.replace(at, kPlace.size(), std::to_string(rank));
  }
  return text;
}

RankProgram Job::program_of(int rank) const {
  const std::string number = std::to_string(rank);
  const std::string size = std::to_string(options_.ranks);
  const std::string form = options_.wrapper.empty() ? "local://" : "file://";
  RankProgram program;
  for (const std::string& word : options_.wrapper) program.command.push_back(replace_rank(word, rank));
  program.command.insert(program.command.end(), options_.command.begin(), options_.command.end());
  program.environment = environment_with({{"TIGHTWIRE_RANK", number},
                                          {"TIGHTWIRE_WORLD_SIZE", size},
                                          {"TIGHTWIRE_LOCAL_RANK", number},
                                          {"TIGHTWIRE_RENDEZVOUS", form + directory_.path() + "/rendezvous"},
                                          {"TIGHTWIRE_JOB_KEY", key_},
                                          {"RANK", number},
                                          {"WORLD_SIZE", size},
                                          {"LOCAL_RANK", number}});
  program.reads_input = rank == 0 && ::isatty(STDIN_FILENO) == 0;
  program.signal_mask = signals_.mask_before();
  return program;
}

void Job::start(int rank) {
  RankProgram program = program_of(rank);
  PipeEnd output;
  PipeEnd errors;
  if (options_.prefix_output) {
    output = relay_.add(rank, STDOUT_FILENO);
    errors = relay_.add(rank, STDERR_FILENO);
    program.output = output.get();
    program.errors = errors.get();
  }
  const StartedRank started = start_rank(program);
  if (started.process > 0) {
    processes_.push_back(started.process);
    return;
  }
  report("rank " + std::to_string(rank) + " could not be started: " + program.command[0] + ": " +
         rendezvous::errno_text(started.error));
  fail(started.error == ENOENT ? 127 : 126);
  terminate_at_ = Clock::now();
}

void Job::step(Clock::time_point until) {
  std::vector<pollfd> polled{{signals_.descriptor(), POLLIN, 0}};
  relay_.prepare(polled);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  const int count = ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX)));
  if (count > 0) {
    while (const int signal = signals_.take()) {
      if (signal != SIGCHLD) pass_on(signal);
    }
    relay_.serve(polled.data() + 1);
  }
  if (relay_.is_broken() && impatience_ == 0) {
    fail(128 + SIGPIPE);
    pass_on(SIGTERM);
  }
  collect_ended();
  act_when_due();
}

void Job::pass_on(int signal) {
  ++impatience_;
  signal_all(impatience_ == 1 ? signal : SIGKILL);
  if (!kill_at_) kill_at_ = Clock::now() + options_.grace;
}

void Job::collect_ended() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank] <= 0) continue;
    siginfo_t info{};
    const auto process = static_cast<id_t>(processes_[rank]);
    if (::waitid(P_PID, process, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    // Before the number of the group can belong to somebody else.
    ::kill(-processes_[rank], SIGKILL);
    int status = 0;
    ::waitpid(processes_[rank], &status, 0);
    on_end(rank, status);
  }
}

void Job::on_end(std::size_t rank, int status) {
  const std::string who = "rank " + std::to_string(rank) + " (process " + std::to_string(processes_[rank]) + ")";
  processes_[rank] = 0;
  if (status == 0) return;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    report(who + " was killed by signal " + std::to_string(signal) + " (" + name_of_signal(signal) + ")");
    // Its peers may notice, fail and end before the kernel is done with a killed process; it was the first all the
    // same, unless we sent the signal.
    if (exited_at_ && Clock::now() < *exited_at_ + kReactionLimit && !kill_at_) status_ = 0;
    exited_at_.reset();
    fail(128 + signal);
  } else {
    report(who + " exited with status " + std::to_string(WEXITSTATUS(status)));
    if (status_ == 0) exited_at_ = Clock::now();
    fail(WEXITSTATUS(status));
  }
  give_grace();
}

void Job::give_grace() {
  if (terminate_at_ || kill_at_ || !is_any_running()) return;
  terminate_at_ = Clock::now() + options_.grace;
}

void Job::signal_all(int signal) {
  for (const pid_t process : processes_) {
    if (process > 0) ::kill(-process, signal);
  }
}

std::string Job::running_ranks() const {
  std::string text;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank] > 0) text += (text.empty() ? "" : " ") + std::to_string(rank);
  }
  return text;
}

void Job::act_when_due() {
  const auto now = Clock::now();
  if (!is_any_running()) return;
  if (terminate_at_ && now >= *terminate_at_ && !kill_at_) {
    report("asking ranks " + running_ranks() + " to end");
    signal_all(SIGTERM);
    kill_at_ = now + options_.kill_after;
  }
  if (kill_at_ && now >= *kill_at_) {
    report("killing ranks " + running_ranks());
    signal_all(SIGKILL);
    kill_at_ = now + options_.kill_after;
  }
}

Clock::time_point Job::next_deadline() const {
  // Signals of children may be lost to another thread of the program, so look now and then without one.
  auto next = Clock::now() + kLookAnyway;
  if (kill_at_) return std::min(next, *kill_at_);
  return terminate_at_ ? std::min(next, *terminate_at_) : next;
}

}  // namespace
}  // namespace launcher

int launch(const LaunchOptions& options) {
  if (options.ranks < 1) throw Error(Errc::invalid_argument, "ranks: " + std::to_string(options.ranks) + " is below 1");
  if (options.command.empty()) throw Error(Errc::invalid_argument, "command: there is nothing to run");
  return launcher::Job(options).run();
}

}  // namespace tightwire
