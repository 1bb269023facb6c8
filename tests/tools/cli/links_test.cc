// Tests `lockstep topo` and `lockstep check`.
// Tier: nightly, by case. A tool.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/process.h"
#include "lockstep/base/version.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

CommandResult run_command_of(const std::string& program,
                             const std::vector<std::string>& arguments,
                             std::map<std::string, std::string> environment) {
  Command command{.arguments = {program},
                  .environment = std::move(environment)};
  command.arguments.insert(command.arguments.end(), arguments.begin(),
                           arguments.end());
  // Works with any number of cores.
  command.arguments.emplace_back("--oversubscribe");
  return run_command(command);
}

CommandResult run_program_with(const std::vector<std::string>& arguments) {
  return run_command_of(kProgram, arguments, {});
}

/// Runs the program with links between slices that have these faults.
CommandResult run_with_faults(const std::string& faults,
                              const std::vector<std::string>& arguments) {
  return run_command_of(LOCKSTEP_BINARY_DIR "/bin/faulty_lockstep", arguments,
                        {{"LOCKSTEP_LINK_FAULTS", faults}});
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

const std::string kEightGpus =
    LOCKSTEP_SOURCE_DIR "/examples/topologies/eight_gpus_nvlink_pairs.txt";

TEST(Topo, ReplaysARecordedMatrixToTheCharacter) {
  const CommandResult result =
      run_program_with({"topo", "--replay", kEightGpus});
  EXPECT_TRUE(result.ok()) << result.err;
  const std::string matrix = text_of(kEightGpus);
  EXPECT_EQ(result.out.substr(0, matrix.size()), matrix);
  EXPECT_NE(result.out.find("Legend:"), std::string::npos);
}

TEST(Topo, MeasuresTheSlicesOfThisHost) {
  const TemporaryFolder folder;
  const std::string page = folder.path("topo.html");
  const CommandResult result = run_program_with(
      {"topo", "--devices", "2xcpu", "--json", "--html", page});
  ASSERT_TRUE(result.ok()) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("devices").size(), 2U);
  EXPECT_EQ(json.at("measured").size(), 2U);
  EXPECT_GT(json.at("measured")[0].at("bytes_per_s").get<double>(), 1e6);
  EXPECT_NE(text_of(page).find("Bandwidth (GB/s)"), std::string::npos);
  // The output can be replayed.
  std::ofstream(folder.path("topo.json")) << result.out;
  const CommandResult again =
      run_program_with({"topo", "--replay", folder.path("topo.json"), "--dot"});
  EXPECT_TRUE(again.ok()) << again.err;
  EXPECT_NE(again.out.find("\"cpu:0\" -- \"cpu:1\""), std::string::npos);
}

TEST(Topo, RefusesAFileThatIsNone) {
  const CommandResult result =
      run_program_with({"topo", "--replay", LOCKSTEP_SOURCE_DIR "/LICENSE"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("[topo] "), std::string::npos) << result.err;
}

TEST(Check, SaysThatAllIsWell) {
  const CommandResult result =
      run_program_with({"check", "--devices", "2xcpu"});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_EQ(result.out.find("ok    machine "), 0U) << result.out;
  for (const char* line :
       {"ok    link           cpu:0 -> cpu:1\n",
        "ok    link           cpu:1 -> cpu:0\n", "Ready to train"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  }
  EXPECT_EQ(result.out.find("open files"), std::string::npos) << result.out;
}

TEST(Check, ReportsThisMachine) {
  const CommandResult result =
      run_program_with({"check", "--devices", "cpu", "--json"});
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

TEST(Check, WarnsOfAVariableThatDisturbs) {
  const CommandResult result = run_command_of(
      kProgram, {"check", "--devices", "cpu"}, {{"GOMP_CPU_AFFINITY", "0"}});
  ASSERT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.out.find("warn  GOMP_CPU_AFFINITY"), std::string::npos)
      << result.out;
}

TEST(Check, EndsWithOneWhenTrainingIsImpossible) {
  const auto result = run_command(
      {.arguments = {"sh", "-c",
                     "ulimit -n 40; exec \"$0\" check --devices cpu", kProgram},
       .deadline_s = 60});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find("fail  open files"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("ulimit -n 4096"), std::string::npos);
}

TEST(Check, FailsIfItsOutputIsLost) {
  const auto result = run_command(
      {.arguments = {"sh", "-c", "exec \"$0\" check --devices cpu >/dev/full",
                     kProgram},
       .deadline_s = 60});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("can't write /dev/full"), std::string::npos)
      << result.err;
}

TEST(Check, IsNamedByTheCommandsThatItReplaced) {
  for (const char* command : {"doctor", "check-links"}) {
    const auto result = run_command({.arguments = {kProgram, command}});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("is gone; use `lockstep check`"),
              std::string::npos)
        << result.err;
  }
}

TEST(Check, NamesABadLinkAndOneThatHangs) {
  const CommandResult result = run_with_faults(
      "corrupt:cpu:0>cpu:1@4194304;delay=60:cpu:2>cpu:0",
      {"check", "--devices", "3xcpu", "--timeout", "3", "--json"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const auto& links = json.at("links");
  EXPECT_EQ(links.at("checked").size(), 6U);
  ASSERT_EQ(links.at("findings").size(), 2U) << result.out;
  EXPECT_EQ(links.at("findings")[0].at("link"), "cpu:0 -> cpu:1");
  EXPECT_EQ(links.at("findings")[0].at("kind"), "changed");
  EXPECT_EQ(links.at("findings")[0].at("bytes"), 4194304);
  EXPECT_EQ(links.at("findings")[1].at("link"), "cpu:2 -> cpu:0");
  EXPECT_EQ(links.at("findings")[1].at("kind"), "timeout");
}

TEST(Check, TestsTheWholeInstallation) {
  const TemporaryFolder folder;
  const std::string report = folder.path("report.json");
  const CommandResult result = run_program_with(
      {"check", "--full", "--devices", "2xcpu", "--report", report});
  EXPECT_TRUE(result.ok()) << result.out << result.err;
  EXPECT_NE(result.out.find("single, dp, ddp: the same parameters"),
            std::string::npos)
      << result.out;
  const auto json = nlohmann::json::parse(text_of(report));
  const auto& findings = json.at("findings");
  EXPECT_EQ(findings[findings.size() - 2].at("topic"), "collectives");
  EXPECT_EQ(findings.back().at("topic"), "training");
  EXPECT_EQ(json.at("commands").size(), 4U);
}

// A run makes the check automatically and continues.
TEST(Check, IsMadeByARunWithAFault) {
  const std::vector<std::string> arguments = {"train",
                                              "--model",
                                              "cnn",
                                              "--strategy",
                                              "dp-classic",
                                              "--devices",
                                              "2xcpu",
                                              "--max-steps",
                                              "2",
                                              "--batch-size",
                                              "8",
                                              "--no-eval",
                                              "--intra-op-threads",
                                              "1"};
  const auto last_line_of = [&](const std::string& faults) {
    const CommandResult result = run_with_faults(faults, arguments);
    EXPECT_TRUE(result.ok()) << result.err;
    const size_t at = result.out.find("parameter_sha256");
    return at == std::string::npos ? result.out : result.out.substr(at);
  };
  EXPECT_EQ(last_line_of("corrupt:cpu:0>cpu:1"), last_line_of(""));
}

}  // namespace
}  // namespace lockstep
