#include "rendezvous/environment.hpp"

#include <map>

#include "rendezvous/address.hpp"
#include "rendezvous_support.hpp"

namespace tightwire::testing::rendezvous_environment_test {
namespace {
using Settings = std::map<std::string, std::string>;

Rendezvous read(const Settings& settings) {
  return rendezvous::from_variables([&](const std::string& name) -> std::optional<std::string> {
    const auto found = settings.find(name);
    if (found == settings.end()) return std::nullopt;
    return found->second;
  });
}

/// The text of the refusal.
std::string refusal(const Settings& settings) {
  try {
    read(settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    return error.what();
  }
  return "accepted";
}

Settings with(Settings settings, const Settings& more) {
  for (const auto& [name, value] : more) settings[name] = value;
  return settings;
}

const Settings kOurs{{"TIGHTWIRE_RANK", "2"},
                     {"TIGHTWIRE_WORLD_SIZE", "4"},
                     {"TIGHTWIRE_RENDEZVOUS", "file:///tmp/job"},
                     {"TIGHTWIRE_JOB_KEY", "secret"}};
const Settings kTorchrun{{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "run5"}};
const Settings kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "1902444545"}};
const Settings kSlurm{{"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_JOB_ID", "77"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NODELIST", "node[03-05,9]"}};

TEST(Environment, WithoutVariablesIsOneRankAlone) {
  const Rendezvous alone = read({});
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.size, 1);
  EXPECT_EQ(alone.timeout, std::chrono::seconds(60));
  EXPECT_EQ(Membership::join(alone, "mine")->blobs(), std::vector<std::string>{"mine"});
}

TEST(Environment, OursComeFirst) {
  const Rendezvous job = read(with(with(kOurs, kTorchrun), kOpenMpi));
  EXPECT_EQ(job.rank, 2);
  EXPECT_EQ(job.size, 4);
  EXPECT_EQ(job.address, "file:///tmp/job");
  EXPECT_EQ(job.key, "secret");
}

TEST(Environment, TimeoutIsInSeconds) {
  EXPECT_EQ(read(with(kOurs, {{"TIGHTWIRE_TIMEOUT", "2.5"}})).timeout, milliseconds(2500));
  for (const char* bad : {"", "soon", "0", "-1", "nan", "inf", "1e9", "5s"}) {
    expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_TIMEOUT", bad}})),
                    {"TIGHTWIRE_TIMEOUT='" + std::string(bad) + "'"});
  }
}

TEST(Environment, OursMissingOrMalformedAreNamed) {
  for (const auto& [name, value] : kOurs) {
    Settings settings = kOurs;
    settings.erase(name);
    expect_mentions(refusal(settings), {name + " is not set"});
  }
  for (const char* bad : {"", "x", "-1", "1x", " 1", "99999999999"}) {
    expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_RANK", bad}})), {"TIGHTWIRE_RANK='" + std::string(bad) + "'"});
  }
  expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_WORLD_SIZE", "0"}})), {"TIGHTWIRE_WORLD_SIZE='0'"});
  expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_RANK", "4"}})), {"TIGHTWIRE_RANK=4", "TIGHTWIRE_WORLD_SIZE=4"});
  expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_RENDEZVOUS", "http://x"}})),
                  {"TIGHTWIRE_RENDEZVOUS", "'http://x'", "tcp://host:port"});
  expect_mentions(refusal(with(kOurs, {{"TIGHTWIRE_JOB_KEY", ""}})), {"TIGHTWIRE_JOB_KEY"});
  expect_mentions(refusal({{"TIGHTWIRE_RENDEZVOUS", "file:///tmp/job"}}), {"TIGHTWIRE_WORLD_SIZE is not set"});
}

TEST(Environment, OneRankNeedsNoAddress) {
  const Rendezvous job = read({{"TIGHTWIRE_RANK", "0"}, {"TIGHTWIRE_WORLD_SIZE", "1"}});
  EXPECT_EQ(job.size, 1);
}

TEST(Environment, TorchrunLeavesItsOwnPortAlone) {
  const Rendezvous job = read(kTorchrun);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.size, 2);
  EXPECT_EQ(job.address, "tcp://node7:29501");
  EXPECT_NE(job.key.find("run5"), std::string::npos);
  EXPECT_EQ(read(with(kTorchrun, {{"MASTER_ADDR", "fd00::7"}})).address, "tcp://[fd00::7]:29501");
}

TEST(Environment, TorchrunWithoutRunIdNeedsAKey) {
  expect_mentions(refusal(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}})), {"TIGHTWIRE_JOB_KEY", "'none'"});
  const Settings keyed = with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}, {"TIGHTWIRE_JOB_KEY", "k"}});
  EXPECT_EQ(read(keyed).key, "k");
}

TEST(Environment, TorchrunErrorsNameTheVariable) {
  Settings settings = kTorchrun;
  settings.erase("MASTER_ADDR");
  expect_mentions(refusal(settings), {"MASTER_ADDR", "TIGHTWIRE_RENDEZVOUS"});
  EXPECT_EQ(read(with(settings, {{"TIGHTWIRE_RENDEZVOUS", "tcp://a:1"}})).address, "tcp://a:1");
  expect_mentions(refusal(with(kTorchrun, {{"MASTER_PORT", "65535"}})), {"MASTER_PORT='65535'"});
  expect_mentions(refusal({{"RANK", "1"}}), {"WORLD_SIZE is not set"});
}

TEST(Environment, OpenMpiOnOneHostMeetsInAFile) {
  const Rendezvous job = read(kOpenMpi);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.size, 2);
  expect_mentions(job.address, {"local:///", "1902444545", std::to_string(::geteuid())});
  expect_mentions(job.key, {"1902444545"});
  EXPECT_NE(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "2"}})).address, job.address);
  Settings older = kOpenMpi;
  older.erase("PMIX_NAMESPACE");
  EXPECT_EQ(read(with(older, {{"OMPI_MCA_ess_base_jobid", "1902444545"}})).address, job.address);
  expect_mentions(refusal(older), {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
}

TEST(Environment, OpenMpiOnSeveralHostsNeedsAnAddress) {
  expect_mentions(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})),
                  {"TIGHTWIRE_RENDEZVOUS is not set", "only 1 of 2"});
}

TEST(Environment, JobNamesCannotLeaveTheTemporaryDirectory) {
  const std::string path =
      rendezvous::parse_address(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "../../etc/x y"}})).address).path;
  EXPECT_EQ(std::filesystem::path(path).parent_path(), std::filesystem::temp_directory_path());
}

TEST(Environment, SlurmOnSeveralHostsMeetsAtTheFirst) {
  const Rendezvous job = read(kSlurm);
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.size, 4);
  const auto address = rendezvous::parse_address(job.address);
  EXPECT_EQ(address.host, "node03");
  EXPECT_GE(address.port, 20000);
  EXPECT_LT(address.port, 32000);
  EXPECT_NE(read(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).address, job.address);
  EXPECT_NE(read(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).key, job.key);
}

TEST(Environment, SlurmOnOneHostMeetsInAFile) {
  const Rendezvous job = read(with(kSlurm, {{"SLURM_STEP_NODELIST", "node-12"}, {"SLURM_STEP_NUM_TASKS", "8"}}));
  expect_mentions(job.address, {"local:///", "77.0"});
  EXPECT_EQ(job.size, 8);
}

TEST(Environment, SlurmBatchScriptIsOneRankAlone) {
  Settings settings = kSlurm;
  settings.erase("SLURM_STEP_ID");
  EXPECT_EQ(read(settings).size, 1);
}

TEST(Environment, PmiTakesTheJobFromSlurmOrFromUs) {
  const Settings pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  expect_mentions(refusal(pmi), {"TIGHTWIRE_RENDEZVOUS is not set", "PMI"});
  const Rendezvous told = read(with(pmi, {{"TIGHTWIRE_RENDEZVOUS", "tcp://a:1"}, {"TIGHTWIRE_JOB_KEY", "k"}}));
  EXPECT_EQ(told.rank, 1);
  EXPECT_EQ(told.size, 2);
  const Rendezvous slurm = read(with(pmi, with(kSlurm, {{"SLURM_STEP_NODELIST", "node1"}})));
  EXPECT_EQ(slurm.rank, 1);
  expect_mentions(slurm.address, {"77.0"});
}

TEST(HostList, FirstHost) {
  EXPECT_EQ(rendezvous::first_host("a"), "a");
  EXPECT_EQ(rendezvous::first_host("a,b"), "a");
  EXPECT_EQ(rendezvous::first_host("n[7,9-12]"), "n7");
  EXPECT_EQ(rendezvous::first_host("n[007-012]-ib,x"), "n007-ib");
  EXPECT_EQ(rendezvous::first_host("r[1-2]n[3-4]"), "r1n3");
  EXPECT_FALSE(rendezvous::names_several_hosts("node-1"));
  EXPECT_TRUE(rendezvous::names_several_hosts("node[1-2]"));
  EXPECT_TRUE(rendezvous::names_several_hosts("a,b"));
}

TEST(Address, Forms) {
  EXPECT_EQ(rendezvous::parse_address("tcp://h:1").port, 1);
  EXPECT_EQ(rendezvous::parse_address("tcp://[::1]:65535").host, "::1");
  for (const char* bad : {"", "tcp://", "tcp://h", "tcp://h:", "tcp://h:0", "tcp://h:65536", "tcp://:1", "tcp://::1:1",
                          "tcp://[::1:1", "tcp://h:1x", "file://relative", "file://", "file:///", "local://"}) {
    EXPECT_THROW(rendezvous::parse_address(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace tightwire::testing::rendezvous_environment_test
