#include "lockstep/comm/environment.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/comm/scoped_environment.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "job"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// Variables of a real `srun`, 22.05, with sizes that need several hosts.
const Variables kSlurm{{"SLURM_JOB_ID", "4711"},
                       {"SLURM_STEP_ID", "3"},
                       {"SLURM_STEPID", "3"},
                       {"SLURM_PROCID", "5"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_STEP_NUM_TASKS", "7"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                       {"SLURM_STEP_NODELIST", "node[03-05,9],login"}};

// Variables of a real `mpirun`, 4.1.4.
const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_MCA_ess_base_jobid", "211550209"},
    {"PMIX_NAMESPACE", "211550209"},
    {"OMPI_MCA_orte_hnp_uri",
     "211550208.0;tcp://192.0.2.2,10.0.0.1:52967;tcp6://[fd00::2]:41365"}};

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      variables.erase(name);
    } else {
      variables[name] = value;
    }
  }
  return variables;
}

Environment read(const Variables& variables) {
  const ScopedEnvironment scope(variables);
  return read_environment();
}

TEST(Environment, IsOneRankWithoutALauncher) {
  const Environment its = read({});
  EXPECT_EQ(its.rank, 0);
  EXPECT_EQ(its.world_size, 1);
  EXPECT_EQ(its.launcher, "none");
  EXPECT_EQ(its.master_addr, "");
  EXPECT_TRUE(its.master_ports.empty());
}

TEST(Environment, IsTorchruns) {
  const Environment its = read(kTorchrun);
  EXPECT_EQ(its.rank, 5);
  EXPECT_EQ(its.world_size, 8);
  EXPECT_EQ(its.local_rank, 1);
  EXPECT_EQ(its.local_world_size, 4);
  EXPECT_EQ(its.node_rank, 1);
  EXPECT_EQ(its.launcher, "torchrun");
  EXPECT_EQ(its.run_id, "job.2");
  EXPECT_EQ(its.master_addr, "node1");
  EXPECT_EQ(its.master_ports, std::vector<uint16_t>{29500});
  EXPECT_TRUE(its.has_agent_store);
}

TEST(Environment, NeedsNoAddressForOneRank) {
  const Environment its = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(its.world_size, 1);
  EXPECT_EQ(its.launcher, "torchrun");
  EXPECT_EQ(its.master_addr, "");
  EXPECT_FALSE(its.has_agent_store);
}

TEST(Environment, IsSruns) {
  const Environment its = read(kSlurm);
  EXPECT_EQ(its.rank, 5);
  EXPECT_EQ(its.world_size, 7);
  EXPECT_EQ(its.local_rank, 1);
  EXPECT_EQ(its.local_world_size, 2);
  EXPECT_EQ(its.node_rank, 2);
  EXPECT_EQ(its.launcher, "slurm");
  EXPECT_EQ(its.run_id, "slurm-4711.3.0");
  EXPECT_EQ(its.master_addr, "node03");
  EXPECT_EQ(its.master_ports.size(), 8U);
}

TEST(Environment, OfOneHostNeedsNoName) {
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "7"},
                               {"SLURM_NODEID", "0"},
                               {"SLURM_LOCALID", "5"}}))
                .master_addr,
            "127.0.0.1");
}

// In a batch script, in an interactive shell, and where someone logged in.
TEST(Environment, IsOneRankInASlurmJobWithoutSrun) {
  for (const Variables& changes :
       {Variables{{"SLURM_STEP_ID", ""}, {"SLURM_STEPID", ""}},
        Variables{{"SLURM_STEP_ID", "4294967291"}},
        Variables{{"SLURM_STEP_ID", "4294967290"}},
        Variables{{"SLURM_PROCID", ""}}}) {
    const Environment its = read(with(kSlurm, changes));
    EXPECT_EQ(its.world_size, 1);
    EXPECT_EQ(its.launcher, "none");
  }
}

TEST(Environment, TellsSlurmsStepsAndRestartsApart) {
  std::set<std::string> run_ids;
  for (const Variables& changes :
       {Variables{}, Variables{{"SLURM_STEP_ID", "4"}},
        Variables{{"SLURM_RESTART_COUNT", "1"}},
        Variables{{"SLURM_JOB_ID", "4712"}}}) {
    run_ids.insert(read(with(kSlurm, changes)).run_id);
  }
  EXPECT_EQ(run_ids.size(), 4U);
}

TEST(Environment, IsMpiruns) {
  const Environment its = read(kOpenMpi);
  EXPECT_EQ(its.rank, 1);
  EXPECT_EQ(its.world_size, 2);
  EXPECT_EQ(its.local_rank, 1);
  EXPECT_EQ(its.local_world_size, 2);
  EXPECT_EQ(its.node_rank, 0);
  EXPECT_EQ(its.launcher, "openmpi");
  EXPECT_EQ(its.run_id, "openmpi-211550209");
  EXPECT_EQ(its.master_addr, "127.0.0.1");
  EXPECT_EQ(its.master_ports.size(), 8U);
}

const Variables kSeveralHosts{{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};

TEST(Environment, IsMpirunsOnSeveralHosts) {
  const Environment its = read(with(kOpenMpi, kSeveralHosts));
  EXPECT_EQ(its.node_rank, 1);
  EXPECT_EQ(its.master_addr, "192.0.2.2");
}

TEST(Environment, IsTheInnermostLaunchers) {
  Variables both = kSlurm;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read(both).launcher, "openmpi");
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(read(both).launcher, "torchrun");
}

TEST(Environment, LetsTheUserChooseTheAddress) {
  for (const Variables& launcher : {kSlurm, kOpenMpi}) {
    const Environment its = read(with(
        launcher, {{"MASTER_ADDR", "elsewhere"}, {"MASTER_PORT", "1234"}}));
    EXPECT_EQ(its.master_addr, "elsewhere");
    EXPECT_EQ(its.master_ports, std::vector<uint16_t>{1234});
  }
}

TEST(Environment, GivesEachJobItsOwnPorts) {
  const auto first = read(kSlurm).master_ports;
  EXPECT_EQ(first, read(with(kSlurm, {{"SLURM_PROCID", "0"},
                                      {"SLURM_NODEID", "0"},
                                      {"SLURM_LOCALID", "0"}}))
                       .master_ports);
  EXPECT_NE(first, read(with(kSlurm, {{"SLURM_JOB_ID", "4712"}})).master_ports);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
  EXPECT_GE(*std::min_element(first.begin(), first.end()), 20'000);
  EXPECT_LT(*std::max_element(first.begin(), first.end()), 32'000);
}

struct Wrong {
  const Variables* launcher;
  std::string name;
  std::string value;
};

class WrongVariables : public testing::TestWithParam<Wrong> {};

TEST_P(WrongVariables, AreNamed) {
  const Wrong& wrong = GetParam();
  const bool has_hosts = wrong.name.find("hnp_uri") != std::string::npos;
  const Variables variables =
      with(*wrong.launcher, has_hosts ? kSeveralHosts : Variables());
  expect_problem(error_of<InvalidArgument>([&] {
                   read(with(variables, {{wrong.name, wrong.value}}));
                 }),
                 ErrorCode::kBadVariable, {wrong.name});
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongVariables,
    testing::Values(
        Wrong{&kTorchrun, "RANK", ""}, Wrong{&kTorchrun, "RANK", "8"},
        Wrong{&kTorchrun, "RANK", "-1"}, Wrong{&kTorchrun, "RANK", "one"},
        Wrong{&kTorchrun, "WORLD_SIZE", ""},
        Wrong{&kTorchrun, "WORLD_SIZE", "0"},
        Wrong{&kTorchrun, "WORLD_SIZE", "99999999999"},
        Wrong{&kTorchrun, "LOCAL_RANK", ""},
        Wrong{&kTorchrun, "LOCAL_RANK", "4"},
        Wrong{&kTorchrun, "LOCAL_WORLD_SIZE", ""},
        Wrong{&kTorchrun, "LOCAL_WORLD_SIZE", "9"},
        Wrong{&kTorchrun, "GROUP_RANK", "6"},
        Wrong{&kTorchrun, "MASTER_ADDR", ""},
        Wrong{&kTorchrun, "MASTER_PORT", ""},
        Wrong{&kTorchrun, "MASTER_PORT", "65536"},
        Wrong{&kSlurm, "MASTER_PORT", "0"}, Wrong{&kSlurm, "SLURM_PROCID", "7"},
        Wrong{&kSlurm, "SLURM_LOCALID", ""},
        Wrong{&kSlurm, "SLURM_LOCALID", "2"},
        Wrong{&kSlurm, "SLURM_NODEID", "4"}, Wrong{&kSlurm, "SLURM_JOB_ID", ""},
        Wrong{&kSlurm, "SLURM_STEP_NUM_TASKS", "0"},
        Wrong{&kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x"},
        Wrong{&kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x3),2"},
        Wrong{&kSlurm, "SLURM_STEP_NODELIST", "node[3"},
        Wrong{&kSlurm, "SLURM_STEP_NODELIST", "$(reboot)"},
        Wrong{&kOpenMpi, "OMPI_COMM_WORLD_SIZE", ""},
        Wrong{&kOpenMpi, "OMPI_COMM_WORLD_RANK", "2"},
        Wrong{&kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK", ""},
        Wrong{&kOpenMpi, "OMPI_MCA_orte_hnp_uri", ""},
        Wrong{&kOpenMpi, "OMPI_MCA_orte_hnp_uri", "1.0;tcp://:5"},
        Wrong{&kOpenMpi, "OMPI_MCA_orte_hnp_uri", "1.0;tcp://a b:5"}));

}  // namespace
}  // namespace lockstep
