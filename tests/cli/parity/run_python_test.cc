// Compares `lockstep run` with torchrun, using PyTorch programs.
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
