// Compares `lockstep run` with torchrun, using PyTorch programs.
// Tier: nightly, by case. torchrun takes seconds to start.
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/process.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Variables = std::map<std::string, std::string>;

constexpr const char* kPrintEnvironment = R"(
import json, os
names = ("RANK", "WORLD", "MASTER", "TORCH", "ROLE", "OMP_")
mine = {k: v for k, v in os.environ.items() if any(n in k for n in names)}
with open(os.environ["OUT"] + os.environ["RANK"], "w") as file:
    json.dump(mine, file)
)";

// Returns the variables that the worker of `rank` recorded, without those that
// differ from run to run.
Variables variables(const TemporaryFolder& folder, const std::string& rank) {
  auto found =
      json::parse(content_of(folder.path("out" + rank))).get<Variables>();
  // torchrun's agent shares its store, which has no authentication. With
  // TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, it doesn't share it either.
  for (const char* name : {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    EXPECT_EQ(found.erase(name), 1u) << name;
  }
  return found;
}

TEST(RunAndPython, GivesWorkersTorchrunsEnvironment) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const TemporaryFolder ours, torchruns;
  const auto script = ours.path("print.py");
  write_text(script, kPrintEnvironment);
  // Without a port, two torchruns on one machine would meet.
  const std::vector<std::string> options{"--nproc_per_node=2", "--role=r",
                                         "--rdzv_id=job", "--rdzv_backend=c10d",
                                         "--rdzv_endpoint=localhost:0"};
  const Variables environment{{"OMP_NUM_THREADS", "1"},
                              {"PYTHON_EXEC", LOCKSTEP_TEST_PYTHON}};
  auto with = [&](const TemporaryFolder& folder) {
    auto all = environment;
    all["OUT"] = folder.path("out");
    return all;
  };
  std::vector<std::string> words{LOCKSTEP_TEST_PYTHON, "-m",
                                 "torch.distributed.run"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  const auto result = run_command(
      {.arguments = words, .environment = with(torchruns), .deadline_s = 120});
  ASSERT_TRUE(result.ok()) << result.err;

  words = {"run"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  const Ended ended = run_lockstep(words, with(ours));
  ASSERT_EQ(ended.code, 0) << ended.err;
  for (const char* rank : {"0", "1"}) {
    EXPECT_EQ(variables(ours, rank), variables(torchruns, rank));
  }
}

// Returns the content of each log file of a job, without error files.
std::map<std::string, std::set<std::string>> logs_in(
    const TemporaryFolder& folder) {
  const auto run = only_entry(folder.path("logs"));
  std::map<std::string, std::set<std::string>> logs;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (!entry.is_regular_file()) continue;
    const auto lines = lines_of(content_of(entry.path()));
    logs[fs::relative(entry.path(), run).string()] = {lines.begin(),
                                                      lines.end()};
  }
  return logs;
}

std::set<std::string> sorted_lines(const std::string& text) {
  const auto lines = lines_of(text);
  return {lines.begin(), lines.end()};
}

TEST(RunAndPython, WritesTorchrunsLogFiles) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const TemporaryFolder ours, torchruns;
  const auto script = ours.path("print.py");
  write_text(script, R"(
import os, sys
print("orange, with a comma", os.environ["RANK"])
print("plain", os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"])
print("apple", file=sys.stderr)
)");
  const auto words = [&](std::vector<std::string> start,
                         const TemporaryFolder& folder) {
    for (const std::string& word :
         {std::string("--nproc-per-node=2"), std::string("--rdzv-backend=c10d"),
          std::string("--rdzv-endpoint=localhost:0"), std::string("--tee=3"),
          "--log-dir=" + folder.path("logs"), std::string("--role=trainer"),
          std::string("--virtual-local-rank"),
          std::string("--log-line-prefix-template=${hostname} $role_name "
                      "${rank} $local_rank $$ ${other}: "),
          std::string("--duplicate-stdout-filters=orange,,,none"),
          std::string("--duplicate-stderr-filters=apple"), script}) {
      start.push_back(word);
    }
    return start;
  };
  const Variables environment{{"OMP_NUM_THREADS", "1"},
                              {"CUDA_VISIBLE_DEVICES", "3,GPU-4"},
                              {"PYTHON_EXEC", LOCKSTEP_TEST_PYTHON}};
  const auto result = run_command(
      {.arguments = words({LOCKSTEP_TEST_PYTHON, "-m", "torch.distributed.run"},
                          torchruns),
       .environment = environment,
       .deadline_s = 120});
  ASSERT_TRUE(result.ok()) << result.err;
  const Ended ended = run_lockstep(words({"run"}, ours), environment);
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(sorted_lines(ended.out), sorted_lines(result.out));
  EXPECT_EQ(logs_in(ours), logs_in(torchruns));
  EXPECT_EQ(logs_in(ours).at("attempt_0/filtered_stdout.log").size(), 2u);
}

TEST(RunAndPython, RunsAnAllReduceOfPyTorch) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const TemporaryFolder folder;
  const auto script = folder.path("sum.py");
  write_text(script, R"(
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print("sum", value.item())
dist.destroy_process_group()
)");
  const Ended ended = run_lockstep({"run", "--nproc-per-node", "2", script},
                                   {{"PYTHON_EXEC", LOCKSTEP_TEST_PYTHON}});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_PRED2(contains, ended.out, "[rank 0] sum 3.0\n");
  EXPECT_PRED2(contains, ended.out, "[rank 1] sum 3.0\n");
}

TEST(RunAndPython, ReportsAnExceptionThatTorchRecorded) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const TemporaryFolder folder;
  const auto script = folder.path("fail.py");
  write_text(script, R"(
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such shard")

main()
)");
  const Ended ended = run_lockstep({"run", "--nproc-per-node", "2", script},
                                   {{"PYTHON_EXEC", LOCKSTEP_TEST_PYTHON}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "root cause: rank 1");
  EXPECT_PRED2(contains, ended.err, "message  ValueError: no such shard");
  EXPECT_PRED2(contains, ended.err, "traceback:\n");
  EXPECT_PRED2(contains, ended.err, "fail.py\", line 8, in main");
}

TEST(RunAndPython, ShowsTheTracebackOfAPlainScript) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const TemporaryFolder folder;
  const auto script = folder.path("fail.py");
  write_text(script, "raise RuntimeError('plain')\n");
  const Ended ended = run_lockstep({"run", "--nproc-per-node", "2", script},
                                   {{"PYTHON_EXEC", LOCKSTEP_TEST_PYTHON}});
  EXPECT_EQ(ended.code, 1);
  EXPECT_PRED2(contains, ended.err, "last lines of its stderr:\n");
  EXPECT_PRED2(contains, ended.err, "      RuntimeError: plain\n");
}

}  // namespace
}  // namespace lockstep
