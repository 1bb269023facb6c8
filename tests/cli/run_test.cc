// `lockstep run` with workers that do as they are told.
#include <algorithm>
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/process.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::run_test {
namespace {

using Words = std::vector<std::string>;

TEST(Run, StartsOneWorkerWithTorchrunsVariables) {
  const auto ended = run_sh({}, "echo $RANK/$WORLD_SIZE $LOCAL_RANK");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "0/1 0\n");
  EXPECT_EQ(ended.err, "");
}

TEST(Run, LabelsTheLinesOfSeveralWorkers) {
  const auto ended =
      run_sh({"--nproc_per_node", "2"}, "echo out; echo err >&2");
  EXPECT_EQ(ended.code, 0) << ended.err;
  auto lines = lines_of(ended.out);
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (Words{"[rank 0] out", "[rank 1] out"}));
  EXPECT_PRED2(contains, ended.err, "[rank 1] err\n");
  EXPECT_EQ(
      run_sh({"--nproc-per-node=2", "--label-lines", "off"}, "echo a").out,
      "a\na\n");
  EXPECT_EQ(run_sh({"--label_lines=on"}, "printf a").out, "[rank 0] a\n");
}

TEST(Run, TakesTorchrunsTemplateForLabels) {
  const auto ended = run_sh({"--nproc-per-node", "2", "--role", "r"},
                            "test $RANK = 0 || echo a",
                            {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                              "${role_name}-${rank}-$local_rank: "}});
  EXPECT_EQ(ended.out, "r-1-1: a\n") << ended.err;
}

TEST(Run, LabelsTheLinesOfOneWorkerByATemplate) {
  EXPECT_EQ(
      run_sh({"--log-line-prefix-template", "${rank}/$hostname: "}, "echo a")
          .out,
      "0/" + host_name() + ": a\n");
  EXPECT_EQ(run_sh({"--log-line-prefix-template", "x", "--label-lines", "off"},
                   "echo a")
                .out,
            "a\n");
}

TEST(Run, CopiesTheLinesThatContainAFilter) {
  const TemporaryFolder folder;
  const Words options{"--nproc-per-node",
                      "2",
                      "--log-dir",
                      folder.path("logs"),
                      "--duplicate_stdout_filters",
                      "apple,a,,b",
                      "--local-ranks-filter",
                      "1"};
  const auto ended = run_sh(options, "echo apple; echo pear; echo a,b");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "[rank 1] apple\n[rank 1] pear\n[rank 1] a,b\n");
  const auto logs = only_entry(folder.path("logs")) / "attempt_0";
  EXPECT_EQ(content_of(logs / "filtered_stdout.log"),
            "[rank 1] apple\n[rank 1] a,b\n");
  EXPECT_FALSE(std::filesystem::exists(logs / "filtered_stderr.log"));
  EXPECT_EQ(content_of(logs / "0/stdout.log"), "apple\npear\na,b\n");
}

TEST(Run, ShowsEachWorkerOnlyItsGpu) {
  const std::string script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES";
  const Words options{"--nproc-per-node", "2", "--label-lines", "off",
                      "--virtual-local-rank"};
  auto lines =
      lines_of(run_sh(options, script, {{"CUDA_VISIBLE_DEVICES", "5,7"}}).out);
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (Words{"0 0 5", "1 0 7"}));
  const auto refused = run_sh(options, script, {{"CUDA_VISIBLE_DEVICES", "5"}});
  EXPECT_EQ(refused.code, 2);
  expect_problem(refused.err, ErrorCode::kNoSuchDevice,
                 {"local rank 1", "CUDA_VISIBLE_DEVICES", "'5'"});
}

TEST(Run, HasTorchrunsGracePeriod) {
  for (const char* name :
       {"PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}) {
    // The child ignores SIGTERM, and so does its sleep.
    Program program(
        sh_job({}, "trap '' TERM; echo ready; while :; do sleep 1; done"),
        {{name, "0.2"}});
    ASSERT_TRUE(program.wait_for_ready(1)) << program.err();
    const Stopwatch watch;
    program.send(SIGTERM);
    EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
    EXPECT_LT(watch.seconds(), 20);  // the grace period is 30 s without it
    const auto refused = run_sh({}, "true", {{name, "soon"}});
    EXPECT_EQ(refused.code, 2);
    EXPECT_PRED2(contains, refused.err, name);
  }
}

TEST(Run, BindsWorkersToNumaNodes) {
  const auto& cores = allowed_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs 2 cores";
  const std::string script = "grep Cpus_allowed_list /proc/self/status";
  // The nodes of this host are not known here, but a single worker is bound to
  // a node with allowed cores, and two exclusive ones never share a core.
  for (const char* mode : {"node", "socket", "exclusive", "core-complex"}) {
    EXPECT_EQ(run_sh({"--numa-binding", mode}, script).code, 0) << mode;
  }
  const auto lines =
      lines_of(run_sh({"--numa-binding", "exclusive", "--nproc-per-node", "2",
                       "--label-lines", "off"},
                      script)
                   .out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0], lines[1]);
}

TEST(Run, BindsWorkersToTheNodesOfTheirGpus) {
  const auto refused =
      run_sh({"--numa-binding", "node"}, "true",
             {{"LD_LIBRARY_PATH", LOCKSTEP_BINARY_DIR "/tests/fake_driver"}});
  EXPECT_EQ(refused.code, 1);
  expect_problem(refused.err, ErrorCode::kNoSuchDevice, {"fffa:ff:10.0"});
}

TEST(Run, RunsAPythonScriptOfAnyName) {
  const TemporaryFolder folder;
  const auto script = folder.path("train");
  write_text(script, "print(__name__)\n");
  const Ended ended =
      run_lockstep({"run", "--run-path", "--no-python", "--start-method",
                    "fork", "--event-log-handler", "null", script});
  EXPECT_EQ(ended.out, "__main__\n") << ended.err;
}

TEST(Run, LeavesTheProgramsArgumentsAlone) {
  const Ended ended =
      run_lockstep({"run", "printf", "%s|", "--a_b", "--nproc-per-node",
                    "[1,2]", "", "--", "--help"});
  EXPECT_EQ(ended.out, "--a_b|--nproc-per-node|[1,2]||--|--help|");
}

TEST(Run, HasDefaultsInTheEnvironment) {
  EXPECT_EQ(run_sh({}, "test $RANK = 1 || echo $WORLD_SIZE",
                   {{"PET_NPROC_PER_NODE", "2"}})
                .out,
            "[rank 0] 2\n");
  EXPECT_EQ(run_sh({"--nproc-per-node", "1"}, "echo $WORLD_SIZE",
                   {{"PET_NPROC_PER_NODE", "2"}})
                .out,
            "1\n");
}

TEST(Run, ExplainsBadUsage) {
  const auto error = [](const Words& words) {
    const Ended ended = run_lockstep(words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    return ended.err;
  };
  EXPECT_PRED2(contains, error({"run"}), "no program to run");
  EXPECT_PRED2(contains, error({"run", "--nproc-per-nod", "2", "true"}),
               "did you mean '--nproc-per-node'?");
  EXPECT_PRED2(contains, error({"run", "--nproc-per-node", "x", "true"}),
               "auto, cpu or gpu");
  EXPECT_PRED2(contains, error({"run", "--spare-worker", "true"}),
               "'--spare-worker' is gone; leave it out");
  EXPECT_PRED2(contains, error({"run", "--nnodes", "1:2", "true"}),
               "needs --rdzv-backend c10d");
  EXPECT_PRED2(contains, error({"run", "--tee", "5", "true"}), "--tee");
  EXPECT_PRED2(contains, error({"run", "--rdzv-conf", "join_timeot=1", "true"}),
               "join_timeout");
  EXPECT_PRED2(contains, error({"run", "-m", "--no-python", "true"}),
               "can't be used together");
  for (const char* when : {"on", "off"}) {
    EXPECT_PRED2(
        contains,
        error({"run", "--numa-binding", "node", "--pin-cores", when, "true"}),
        "can't be used together");
  }
  EXPECT_PRED2(contains, error({"run", "--logs-specs", "mine", "true"}),
               "--log-dir");
  EXPECT_PRED2(contains, error({"run", "--event-log-handler=console", "true"}),
               "error.json");
  EXPECT_PRED2(contains,
               error({"run", "--signals-to-handle", "SIGTREM", "true"}),
               "'SIGTERM'");
}

TEST(Run, KnowsHowWorkersEndWhereItsParentIgnoresThat) {
  Command command;
  command.arguments = {"sh", "-c", "trap '' CHLD; exec \"$0\" \"$@\"",
                       kProgram};
  for (const auto& word :
       sh_job({"--nproc-per-node", "2"}, "exit $((RANK * 3))")) {
    command.arguments.push_back(word);
  }
  command.deadline_s = 60;
  const CommandResult result = run_command(command);
  EXPECT_EQ(result.end, CommandResult::End::kExited);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(contains, result.err, "rank 1") << result.err;
  EXPECT_PRED2(contains, result.err, "exit code 3");
}

TEST(Run, SaysThatThereIsNoSuchProgram) {
  const Ended ended = run_lockstep({"run", "--nproc-per-node", "2", "./trian"});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kProcessStart, {"'./trian'"});
}

TEST(Run, SaysThatAScriptHasNoInterpreter) {
  const TemporaryFolder folder;
  const auto script = folder.path("tool");
  write_text(script, "#!/nowhere/sh\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const Ended ended = run_lockstep({"run", "--nproc-per-node", "2", script});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kProcessStart, {script, "interpreter"});
}

TEST(Run, GivesEachWorkerItsOwnCores) {
  const auto& cores = allowed_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs 2 cores";
  const std::string script =
      "echo $(grep Cpus_allowed_list /proc/self/status) $OMP_NUM_THREADS";
  const auto text = run_sh({"--nproc-per-node", "2"}, script).out;
  const auto part = cores.size() / 2;
  const auto list = [&](size_t first) {
    return part == 1 ? std::to_string(cores[first])
                     : std::to_string(cores[first]) + "-" +
                           std::to_string(cores[first + part - 1]);
  };
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_PRED2(contains, text,
                 "[rank " + std::to_string(rank) + "] Cpus_allowed_list: " +
                     list(rank * part) + " " + std::to_string(part) + "\n");
  }
  const auto free =
      run_sh({"--nproc-per-node", "2", "--pin-cores", "off"}, script).out;
  const auto one = run_sh({}, script).out;
  const auto allowed = one.substr(0, one.rfind(' '));
  EXPECT_PRED2(contains, free, allowed);
}

// PyTorch aborts at the exit of such a program. See pins_cores() in
// cli/start/run.cc.
TEST(Run, PinsNoPythonProgramToASingleCore) {
  const std::string cores = std::to_string(allowed_cores().size());
  const TemporaryFolder folder;
  const std::string script = folder.path("cores.py");
  write_text(script, "import os\nprint(len(os.sched_getaffinity(0)))\n");
  const auto cores_of_rank_0 = [&](const Words& options) {
    Words words{"run", "--nproc-per-node", cores, "--label-lines", "off"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back(script);
    return lines_of(run_lockstep(words).out).at(0);
  };
  EXPECT_EQ(cores_of_rank_0({}), cores);
  EXPECT_EQ(cores_of_rank_0({"--pin-cores", "on"}), "1");
}

TEST(Run, KeepsLogsAsTorchrunDoes) {
  const TemporaryFolder folder;
  const auto ended = run_sh({"--nproc-per-node", "2", "--log-dir",
                             folder.path("logs"), "--rdzv-id", "job7"},
                            "echo out $RANK; echo err $RANK >&2");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "[rank 1] out 1\n");
  const auto run = only_entry(folder.path("logs"));
  EXPECT_TRUE(run.filename().string().starts_with("job7_"));
  for (const std::string rank : {"0", "1"}) {
    const auto logs = run / "attempt_0" / rank;
    EXPECT_EQ(content_of(logs / "stdout.log"), "out " + rank + "\n");
    EXPECT_EQ(content_of(logs / "stderr.log"), "err " + rank + "\n");
  }
}

TEST(Run, RedirectsTeesAndFiltersByLocalRank) {
  const TemporaryFolder folder;
  const std::string script = "echo out $RANK; echo err $RANK >&2";
  const auto ended =
      run_sh({"--nproc-per-node", "3", "-r", "0:1,1:2", "-t", "2:3",
              "--local-ranks-filter", "0,1", "--log-dir", folder.path("logs")},
             script);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "[rank 1] out 1\n");
  EXPECT_EQ(ended.err, "[rank 0] err 0\n");
  const auto logs = only_entry(folder.path("logs")) / "attempt_0";
  EXPECT_EQ(content_of(logs / "0/stdout.log"), "out 0\n");
  EXPECT_FALSE(std::filesystem::exists(logs / "0/stderr.log"));
  EXPECT_EQ(content_of(logs / "1/stderr.log"), "err 1\n");
  EXPECT_EQ(content_of(logs / "2/stdout.log"), "out 2\n");
  EXPECT_EQ(content_of(logs / "2/stderr.log"), "err 2\n");
}

TEST(Run, LeavesNoTemporaryFolder) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_sh({}, "exit 3", {{"TMPDIR", folder.path()}}).code, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::run_test
