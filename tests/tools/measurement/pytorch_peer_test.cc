#include "lockstep/tools/measurement/pytorch_peer.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::tools {
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
        is_error(error.what(), ErrorCode::kProcessStart, {"no figures today"}));
  }
}

// Sets an environment variable for a test, and restores it afterwards.
class Variable {
 public:
  Variable(std::string name, const std::string& value)
      : name_(std::move(name)), before_(env(name_)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

// An installation, as far as find_pytorch() looks at it.
class Installation {
 public:
  Installation() {
    write_text(script(), "");
    // Makes `import torch` succeed in it.
    write_text(python(), "#!/bin/sh\nexit 0\n");
    std::filesystem::permissions(python(), std::filesystem::perms::owner_all);
  }
  std::string program() const {
    return folder_.path("prefix/libexec/lockstep/lockstep");
  }
  std::string script() const {
    return folder_.path("prefix/share/lockstep/pytorch_step_time.py");
  }
  std::string python() const { return folder_.path("bin/python3"); }
  void names_python(const std::string& path) const {
    write_text(folder_.path("prefix/share/lockstep/torch_python"), path + "\n");
  }

 private:
  TemporaryFolder folder_;
};

TEST(FindPyTorch, FindsTheScriptInTheInstallationOfTheProgram) {
  const Installation installation;
  const Variable python("LOCKSTEP_PYTHON", installation.python());
  const PyTorchPeer peer = find_pytorch({}, installation.program());
  EXPECT_EQ(peer.script, installation.script());
  EXPECT_EQ(peer.python, installation.python());
  EXPECT_EQ(peer.missing, "");
}

TEST(FindPyTorch, TakesThePythonThatTheInstallationNames) {
  const Installation installation;
  installation.names_python(installation.python());
  const Variable none("LOCKSTEP_PYTHON", "");
  const PyTorchPeer peer = find_pytorch({}, installation.program());
  EXPECT_EQ(peer.python, installation.python());
  EXPECT_EQ(peer.missing, "");
}

TEST(FindPyTorch, TakesPython3OfPathWhereTheBuildsIsGone) {
  const Installation installation;
  installation.names_python("/no/python");
  const Variable none("LOCKSTEP_PYTHON", "");
  const std::filesystem::path bin =
      std::filesystem::path(installation.python()).parent_path();
  const Variable path("PATH", bin.string());
  const PyTorchPeer peer = find_pytorch({}, installation.program());
  EXPECT_EQ(peer.python, "python3");
  EXPECT_EQ(peer.missing, "");
}

TEST(FindPyTorch, SaysThatThereIsNoPython3) {
  const Installation installation;
  const Variable none("LOCKSTEP_PYTHON", "");
  const Variable path("PATH", "/no/folder");
  const auto missing = find_pytorch({}, installation.program()).missing;
  for (const char* part : {"python3", "expected", "LOCKSTEP_PYTHON"}) {
    EXPECT_PRED2(contains, missing, part);
  }
}

TEST(FindPyTorch, NamesTheScriptThatAnInstallationLacks) {
  const auto missing =
      find_pytorch({}, "/no/libexec/lockstep/lockstep").missing;
  EXPECT_PRED2(contains, missing, "share/lockstep/pytorch_step_time.py");
  EXPECT_PRED2(contains, missing, "/no/libexec/lockstep/lockstep");
}

TEST(FindPyTorch, SaysWhyThereIsNone) {
  const Variable nowhere("LOCKSTEP_PYTHON", "/no/python");
  const auto missing = find_pytorch().missing;
  EXPECT_NE(missing.find("/no/python"), std::string::npos) << missing;
  EXPECT_NE(missing.find("LOCKSTEP_PYTHON"), std::string::npos) << missing;
}

TEST(FindPyTorch, RefusesAPythonWithoutTorch) {
  const Variable fake("LOCKSTEP_PYTHON", "/bin/false");
  const auto missing = find_pytorch().missing;
  EXPECT_PRED2(contains, missing, "can't import torch");
  EXPECT_PRED2(contains, missing, "'/bin/false' -m pip install torch");
}

// `make build` makes such an environment on a host without a GPU.
TEST(FindPyTorch, NamesMakeSetupForAnEnvironmentThatIsForCppOnly) {
  const TemporaryFolder clone;
  const std::string python = clone.path(".venv/bin/python");
  write_text(python, "#!/bin/sh\nexit 1\n");
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  write_text(clone.path(".venv/libtorch_only"), "");
  write_text(clone.path("Makefile"), "setup:\n");
  const Variable named("LOCKSTEP_PYTHON", python);
  EXPECT_PRED2(contains, find_pytorch().missing,
               "make -C '" + clone.path() + "' setup");
}

TEST(FindPyTorch, RecommendsNoPackagesForTheSystemsPython) {
  const Installation installation;
  write_text(installation.python(), "#!/bin/sh\nexit 1\n");
  const Variable none("LOCKSTEP_PYTHON", "");
  const Variable path(
      "PATH", std::filesystem::path(installation.python()).parent_path());
  const auto missing = find_pytorch({}, installation.program()).missing;
  EXPECT_PRED2(contains, missing, "python3 -m venv");
  EXPECT_PRED2(contains, missing, "LOCKSTEP_PYTHON=");
}

}  // namespace
}  // namespace lockstep::tools
