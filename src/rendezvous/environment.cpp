#include "environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "address.hpp"

namespace tightwire::rendezvous {
namespace {

/// What the variables of one launcher tell. Where address or key stay empty, the hint says why.
struct Source {
  std::string rank_variable;
  std::string size_variable;
  std::string address;
  std::string address_hint;
  std::string key;
  std::string key_hint;
};

[[noreturn]] void refuse(const std::string& message) { throw Error(Errc::invalid_argument, message); }

int read_number(const Variables& variables, const std::string& name, int least, int most) {
  const auto text = variables(name);
  if (!text) refuse(name + " is not set");
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    refuse(name + "='" + *text + "' is not a whole number from " + std::to_string(least) + " to " +
           std::to_string(most));
  }
  return value;
}

/// For ranks that are all on one machine.
std::string local_address_of(const std::string& job) {
  std::string name = "tightwire-" + std::to_string(::geteuid()) + "-" + job;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  std::error_code error;
  const auto directory = std::filesystem::temp_directory_path(error);
  if (error) refuse("the temporary directory (TMPDIR) cannot be used: " + error.message());
  return "local://" + std::filesystem::absolute(directory / name).string();
}

Source from_ours() {
  return {"TIGHTWIRE_RANK", "TIGHTWIRE_WORLD_SIZE", {}, "TIGHTWIRE_RANK needs it", {}, "TIGHTWIRE_RANK needs it"};
}

Source from_torchrun(const Variables& variables) {
  Source source{"RANK", "WORLD_SIZE", {}, {}, {}, {}};
  const auto host = variables("MASTER_ADDR");
  if (!host || !variables("MASTER_PORT")) {
    source.address_hint = std::string(host ? "MASTER_PORT" : "MASTER_ADDR") + " is not set either, though RANK is";
  } else if (!variables("TIGHTWIRE_RENDEZVOUS")) {
    // torch's own store owns MASTER_PORT itself.
    const int port = read_number(variables, "MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max() - 1) + 1;
    const bool six = host->find(':') != std::string::npos;
    source.address = "tcp://" + (six ? "[" + *host + "]" : *host) + ":" + std::to_string(port);
  }
  const auto run = variables("TORCHELASTIC_RUN_ID");
  if (run && !run->empty() && *run != "none") source.key = "torchrun " + *run;
  source.key_hint = "TORCHELASTIC_RUN_ID" + (run ? "='" + *run + "' identifies no job" : std::string(" is not set"));
  return source;
}

Source from_open_mpi(const Variables& variables) {
  Source source{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {}, {}, {}, {}};
  auto job = variables("PMIX_NAMESPACE");
  if (!job) job = variables("OMPI_MCA_ess_base_jobid");
  source.key_hint = "neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid is set";
  source.address_hint = source.key_hint;
  if (!job) return source;
  source.key = "open mpi " + *job;
  const auto local = variables("OMPI_COMM_WORLD_LOCAL_SIZE");
  const auto size = variables("OMPI_COMM_WORLD_SIZE");
  if (local && local == size) {
    source.address = local_address_of("ompi-" + *job);
  } else {
    source.address_hint = "only " + local.value_or("an unknown number") + " of " + size.value_or("?") +
                          " ranks are on this host (OMPI_COMM_WORLD_LOCAL_SIZE), so Open MPI does not tell where rank "
                          "0 is";
  }
  return source;
}

std::optional<std::string> slurm_job(const Variables& variables) {
  const auto job = variables("SLURM_JOB_ID");
  const auto step = variables("SLURM_STEP_ID");
  if (!job || !step) return std::nullopt;
  return *job + "." + *step;
}

/// The same on all ranks, below the ports that the kernel hands out.
int port_of(const std::string& job) {
  std::uint32_t hash = 2166136261U;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return 20000 + static_cast<int>(hash % 12000U);
}

Source from_slurm(const Variables& variables) {
  Source source{
      "SLURM_PROCID", variables("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", {}, {}, {}, {}};
  const auto job = slurm_job(variables);
  source.key_hint = "SLURM_JOB_ID or SLURM_STEP_ID is not set";
  source.address_hint = source.key_hint;
  if (!job) return source;
  source.key = "slurm " + *job;
  const auto hosts = variables("SLURM_STEP_NODELIST");
  if (!hosts || first_host(*hosts).empty()) {
    source.address_hint = "SLURM_STEP_NODELIST names no host";
  } else if (names_several_hosts(*hosts)) {
    source.address = "tcp://" + first_host(*hosts) + ":" + std::to_string(port_of(*job));
  } else {
    source.address = local_address_of("slurm-" + *job);
  }
  return source;
}

Source from_pmi(const Variables& variables) {
  Source source = from_slurm(variables);
  source.rank_variable = "PMI_RANK";
  source.size_variable = "PMI_SIZE";
  if (source.key.empty()) {
    source.key_hint = "PMI does not tell one job from another";
    source.address_hint = "PMI does not tell where rank 0 is";
  }
  return source;
}

bool any_set(const Variables& variables, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return variables(name).has_value(); });
}

std::optional<Source> find_source(const Variables& variables) {
  if (any_set(variables, {"TIGHTWIRE_RANK", "TIGHTWIRE_WORLD_SIZE"})) return from_ours();
  if (variables("RANK") && variables("WORLD_SIZE")) return from_torchrun(variables);
  if (variables("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  if (variables("PMI_RANK")) return from_pmi(variables);
  // A batch script has SLURM_PROCID as well, but only a task of srun is one of several ranks.
  if (variables("SLURM_PROCID") && variables("SLURM_STEP_ID")) return from_slurm(variables);
  if (any_set(variables, {"RANK", "WORLD_SIZE"})) return from_torchrun(variables);
  if (variables("TIGHTWIRE_RENDEZVOUS")) return from_ours();
  return std::nullopt;
}

std::chrono::milliseconds read_timeout(const std::string& text) {
  constexpr double kMostSeconds = 7 * 24 * 3600;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0.001) || seconds > kMostSeconds) {
    refuse("TIGHTWIRE_TIMEOUT='" + text + "' is not a number of seconds from 0.001 to 604800");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void read_address(const Variables& variables, const Source& source, Rendezvous& rendezvous) {
  rendezvous.address = source.address;
  if (const auto address = variables("TIGHTWIRE_RENDEZVOUS")) {
    try {
      parse_address(*address);
    } catch (const Error& error) {
      refuse("TIGHTWIRE_RENDEZVOUS: " + std::string(error.what()));
    }
    rendezvous.address = *address;
  }
  if (rendezvous.size > 1 && rendezvous.address.empty()) {
    refuse("TIGHTWIRE_RENDEZVOUS is not set, and " + source.address_hint +
           "; set it to tcp://HOST_OF_RANK_0:PORT or file:///SHARED/PATH on all ranks");
  }
}

void read_key(const Variables& variables, const Source& source, Rendezvous& rendezvous) {
  rendezvous.key = source.key;
  if (const auto key = variables("TIGHTWIRE_JOB_KEY")) {
    if (key->empty()) refuse("TIGHTWIRE_JOB_KEY='' is empty");
    rendezvous.key = *key;
  }
  if (rendezvous.size > 1 && rendezvous.key.empty()) {
    refuse("TIGHTWIRE_JOB_KEY is not set, and " + source.key_hint + "; set it to one secret text on all ranks");
  }
}

}  // namespace

Rendezvous from_variables(const Variables& variables) {
  Rendezvous rendezvous;
  if (const auto timeout = variables("TIGHTWIRE_TIMEOUT")) rendezvous.timeout = read_timeout(*timeout);
  const auto source = find_source(variables);
  if (!source) return rendezvous;
  constexpr int kMostRanks = 1 << 20;
  rendezvous.size = read_number(variables, source->size_variable, 1, kMostRanks);
  rendezvous.rank = read_number(variables, source->rank_variable, 0, kMostRanks);
  if (rendezvous.rank >= rendezvous.size) {
    refuse(source->rank_variable + "=" + std::to_string(rendezvous.rank) + " is not below " + source->size_variable +
           "=" + std::to_string(rendezvous.size));
  }
  read_address(variables, *source, rendezvous);
  read_key(variables, *source, rendezvous);
  return rendezvous;
}

Rendezvous environment() {
  return from_variables([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

}  // namespace tightwire::rendezvous
