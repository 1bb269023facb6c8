// Runs Lockstep's backend for torch.distributed in Python, with Gloo as the
// oracle. The package is that of the build folder.
#include <map>
#include <string>

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

class PythonBackend : public testing::TestWithParam<int> {};

TEST_P(PythonBackend, ComputesWhatGlooComputes) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const Ended ended =
      run_lockstep({"run", "--nproc-per-node", std::to_string(GetParam()),
                    kFolder + "python_backend.py"},
                   with_package());
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "calls are those of Gloo")) << ended.out;
}

INSTANTIATE_TEST_SUITE_P(Ranks, PythonBackend, testing::Values(1, 2, 3, 5));

// torch then wraps the backend, and compares the calls of the ranks over Gloo.
TEST(PythonBackend, WorksInDetailMode) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const Ended ended = run_lockstep(
      {"run", "--nproc-per-node", "2", kFolder + "python_backend.py"},
      with_package({{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}}));
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST(PythonBackend, EndsWithoutDestroyProcessGroup) {
  if (!python_has("torch")) GTEST_SKIP() << "no torch in Python";
  const Ended ended = run_lockstep(
      {"run", "--nproc-per-node", "2", kFolder + "python_backend.py"},
      with_package({{"WITHOUT_DESTROY", "1"}}));
  EXPECT_EQ(ended.code, 0) << ended.err;
}

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
