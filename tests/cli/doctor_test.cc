// Tier: nightly, by case. A tool.
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/process.h"
#include "lockstep/base/version.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

CommandResult run_doctor(
    const std::map<std::string, std::string>& environment = {}) {
  return run_command({.arguments = {kProgram, "doctor", "--json"},
                      .environment = environment,
                      .deadline_s = 60});
}

TEST(Doctor, ReportsThisMachine) {
  const auto result = run_doctor();
  ASSERT_TRUE(result.ok()) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["can_train"], true);
  std::map<std::string, std::string> found;
  for (const auto& finding : report["findings"]) {
    found[finding["topic"]] = finding["found"];
  }
  EXPECT_EQ(found["Lockstep"], kVersion);
  EXPECT_EQ(found["LibTorch"].rfind(std::string(kTorchVersion) + ".", 0), 0u)
      << found["LibTorch"];
  EXPECT_EQ(std::stoul(found["cores"]), allowed_cores().size());
  for (const char* topic : {"memory", "CUDA", "/dev/shm", "open files"}) {
    EXPECT_NE(found[topic], "") << topic;
  }
}

TEST(Doctor, WarnsOfAVariableThatDisturbs) {
  const auto result = run_doctor({{"GOMP_CPU_AFFINITY", "0"}});
  ASSERT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.out.find("GOMP_CPU_AFFINITY"), std::string::npos);
}

TEST(Doctor, EndsWithOneWhenTrainingIsImpossible) {
  const auto result = run_command(
      {.arguments = {"sh", "-c", "ulimit -n 40; exec \"$0\" doctor", kProgram},
       .deadline_s = 60});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find("fail  open files"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("ulimit -n 4096"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
