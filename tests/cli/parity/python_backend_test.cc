// Runs Lockstep's backend for torch.distributed in Python, with Gloo as the
// oracle. The package is that of the build folder.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

const std::string kFolder = LOCKSTEP_SOURCE_DIR "/tests/cli/parity/";

Variables with_package(Variables more = {}) {
  more["PYTHONPATH"] = LOCKSTEP_BINARY_DIR "/python";
  more["PYTHON_EXEC"] = LOCKSTEP_TEST_PYTHON;
  more["OMP_NUM_THREADS"] = "1";
  return more;
}

/// Compares the calls of some ranks with those of Gloo.
void compare_with_gloo(int ranks, const Variables& more = {}) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const Ended ended =
      run_lockstep({"run", "--nproc-per-node", std::to_string(ranks),
                    kFolder + "python_backend.py"},
                   with_package(more));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "calls are those of Gloo")) << ended.out;
}

class PythonBackend : public testing::TestWithParam<int> {};

TEST_P(PythonBackend, ComputesWhatGlooComputes) {
  compare_with_gloo(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Two, PythonBackend, testing::Values(2));
// Tier of Others/PythonBackend: nightly, by case. Each rank loads PyTorch.
INSTANTIATE_TEST_SUITE_P(Others, PythonBackend, testing::Values(1, 3, 5));

// Tier of PythonBackend: nightly, by case. Each rank loads PyTorch.
// Gloo needs the name of the network's interface, which differs between the
// hosts.
TEST(PythonBackend, ComputesOnTwoHostsWhatGlooComputes) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const std::string rank =
      "export GLOO_SOCKET_IFNAME=$(ls /sys/class/net | grep ^ls); "
      "exec " LOCKSTEP_TEST_PYTHON " " +
      kFolder + "python_backend.py";
  const auto ended = run_command(
      {.arguments = {LOCKSTEP_SOURCE_DIR "/tests/cli/two_hosts.sh", kProgram,
                     "--no-python", "--", "bash", "-c", rank},
       .environment = with_package(),
       .deadline_s = 200});
  if (ended.exit_code == 77) GTEST_SKIP() << "no namespaces: " << ended.err;
  EXPECT_TRUE(ended.ok()) << ended.err;
  EXPECT_TRUE(contains(ended.out, "calls are those of Gloo")) << ended.out;
}

// torch then wraps the backend, and compares the calls of the ranks over Gloo.
TEST(PythonBackend, WorksInDetailMode) {
  compare_with_gloo(2, {{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}});
}

TEST(PythonBackend, EndsWithoutDestroyProcessGroup) {
  compare_with_gloo(2, {{"WITHOUT_DESTROY", "1"}});
}

// Tier of Of/PythonPrograms: nightly, by case. Each takes half a minute.
/// Programs as users of PyTorch write them, which one start of Python runs.
class PythonPrograms : public testing::TestWithParam<std::vector<std::string>> {
};

TEST_P(PythonPrograms, ComputeWhatTheyComputeOverGloo) {
  for (const char* package : {"torch", "accelerate", "lightning"}) {
    if (!python_has(package)) GTEST_SKIP() << "no " << package << " in Python";
  }
  std::vector<std::string> command{"run", "--nproc-per-node", "2",
                                   kFolder + "python_programs.py"};
  command.insert(command.end(), GetParam().begin(), GetParam().end());
  const Ended ended = run_lockstep(command, with_package());
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "compute what they compute over Gloo"))
      << ended.out;
}

INSTANTIATE_TEST_SUITE_P(
    Of, PythonPrograms,
    testing::Values(std::vector<std::string>{"fsdp2", "zero_redundancy",
                                             "distributed_checkpoint",
                                             "compiled"},
                    std::vector<std::string>{
                        "forked_workers", "sparse_gradients", "many_groups",
                        "two_plugins", "buckets_in_shared_memory",
                        "flight_recorder", "groups_made_again"},
                    std::vector<std::string>{"accelerate", "trainer"},
                    std::vector<std::string>{"lightning"}),
    [](const auto& instance) { return instance.param.front(); });

// Tier of Calls/PythonFaults: nightly, by case. Each case loads PyTorch twice.
class PythonFaults : public testing::TestWithParam<const char*> {
 protected:
  /// Runs a call while the other rank was killed, or sleeps.
  std::string failure(const std::string& how) const {
    const auto result = run_command(
        {.arguments = {LOCKSTEP_TEST_PYTHON, kFolder + "python_faults.py", how,
                       GetParam()},
         .environment = with_package(),
         .deadline_s = 120});
    EXPECT_TRUE(result.ok()) << result.err;
    return result.out;
  }
};

TEST_P(PythonFaults, NameARankThatWasKilled) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const std::string text = failure("killed");
  EXPECT_PRED2(contains, text, "rank 1");
  EXPECT_PRED2(contains, text, "ended");
}

// torch's own tests look for these words.
TEST_P(PythonFaults, SayThatACallTimedOut) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const std::string text = failure("late");
  EXPECT_PRED2(contains, text, "rank 1");
  EXPECT_PRED2(contains, text, "timed out");
}

INSTANTIATE_TEST_SUITE_P(Calls, PythonFaults,
                         testing::Values("all_reduce", "reduce_scatter",
                                         "barrier", "recv"),
                         [](const auto& call) {
                           return std::string(call.param);
                         });

}  // namespace
}  // namespace lockstep
