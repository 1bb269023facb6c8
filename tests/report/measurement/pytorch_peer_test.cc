#include "lockstep/report/measurement/pytorch_peer.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"

namespace lockstep::report {
namespace {

const PyTorchPeer kPeer{.python = "/py", .script = "/script.py", .missing = ""};

bool has(const Command& command, const std::string& option,
         const std::string& value) {
  const auto& arguments = command.arguments;
  const auto found = std::find(arguments.begin(), arguments.end(), option);
  return found != arguments.end() && found + 1 != arguments.end() &&
         *(found + 1) == value;
}

TEST(PyTorchCommand, GivesASingleProcessAllCores) {
  const auto command = pytorch_command(kPeer, {}, "single", 2, 8);
  EXPECT_EQ(command.arguments[0], "/py");
  EXPECT_EQ(command.arguments[1], "/script.py");
  EXPECT_TRUE(has(command, "--mode", "single"));
  EXPECT_TRUE(has(command, "--threads", "8"));
}

TEST(PyTorchCommand, LaunchesAProcessADeviceForDdp) {
  const auto command = pytorch_command(kPeer, {}, "ddp", 2, 8);
  const std::vector<std::string> start(command.arguments.begin(),
                                       command.arguments.begin() + 5);
  EXPECT_EQ(start,
            (std::vector<std::string>{"/py", "-m", "torch.distributed.run",
                                      "--standalone", "--nproc_per_node=2"}));
  EXPECT_TRUE(has(command, "--threads", "4"));
}

TEST(PyTorchCommand, LaunchesTheSameProcessesForIdeal) {
  const auto command = pytorch_command(kPeer, {}, "ideal", 2, 8);
  EXPECT_TRUE(has(command, "--mode", "ideal"));
  EXPECT_TRUE(has(command, "--threads", "4"));
  EXPECT_EQ(command.arguments[4], "--nproc_per_node=2");
}

TEST(PyTorchCommand, RunsTheSameWork) {
  const Work work{.model = "resnet18",
                  .batch_size = 32,
                  .steps = 7,
                  .warmup = 2,
                  .seed = 9,
                  .channels_last = true};
  const auto command = pytorch_command(kPeer, work, "single", 1, 1);
  EXPECT_TRUE(has(command, "--model", "resnet18"));
  EXPECT_TRUE(has(command, "--batch", "32"));
  EXPECT_TRUE(has(command, "--steps", "7"));
  EXPECT_TRUE(has(command, "--warmup", "2"));
  EXPECT_TRUE(has(command, "--seed", "9"));
  const auto& arguments = command.arguments;
  for (const char* flag : {"--channels-last", "--fused"}) {
    EXPECT_NE(std::find(arguments.begin(), arguments.end(), flag),
              arguments.end());
  }
}

TEST(PyTorchMeasurement, ReadsTheLastLine) {
  const auto measured = pytorch_measurement(
      "noise\n{\"model\": \"mlp\", \"batch\": 7, \"world_size\": 2, "
      "\"parameters\": 10, \"step_times_s\": [0.5, 0.25]}\n",
      "ddp", {});
  EXPECT_EQ(measured.report.strategy, "ddp");
  EXPECT_EQ(measured.report.split, (std::vector<int64_t>{4, 3}));
  EXPECT_DOUBLE_EQ(measured.report.total_time_s, 0.75);
  EXPECT_EQ(measured.report.steps, 2);
}

TEST(PyTorchMeasurement, SaysWhatItGotInstead) {
  try {
    pytorch_measurement("no figures today\n", "ddp", {});
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_TRUE(
        is_error(error.what(), ErrorCode::kPeerProcess, {"no figures today"}));
  }
}

class LockstepPython {
 public:
  explicit LockstepPython(const std::string& path) {
    const char* before = std::getenv("LOCKSTEP_PYTHON");
    if (before != nullptr) before_ = before;
    ::setenv("LOCKSTEP_PYTHON", path.c_str(), 1);
  }
  ~LockstepPython() {
    if (before_.empty()) {
      ::unsetenv("LOCKSTEP_PYTHON");
    } else {
      ::setenv("LOCKSTEP_PYTHON", before_.c_str(), 1);
    }
  }
  LockstepPython(const LockstepPython&) = delete;
  LockstepPython& operator=(const LockstepPython&) = delete;

 private:
  std::string before_;
};

TEST(FindPyTorch, SaysWhyThereIsNone) {
  const LockstepPython nowhere("/no/python");
  const auto missing = find_pytorch().missing;
  EXPECT_NE(missing.find("/no/python"), std::string::npos) << missing;
  EXPECT_NE(missing.find("LOCKSTEP_PYTHON"), std::string::npos) << missing;
}

TEST(FindPyTorch, RefusesAPythonWithoutTorch) {
  const LockstepPython fake("/bin/false");
  EXPECT_NE(find_pytorch().missing.find("can't import torch"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::report
