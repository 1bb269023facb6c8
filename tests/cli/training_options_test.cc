// Defaults of the options of `lockstep train`, and the files that they write.
// Tier: full, by case. Each case starts the program.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/process.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::training_options_test {
namespace {

using Words = std::vector<std::string>;

/// Runs two steps. Returns stdout.
std::string two_steps(const Words& more) {
  Words words{"train",        "--model", "mlp",       "--max-steps", "2",
              "--batch-size", "8",       "--no-eval", "--seed",      "3"};
  words.insert(words.end(), more.begin(), more.end());
  const Ended ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

TEST(Strategy, FollowsTheDevices) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const std::string one = two_steps({"--devices", "cpu"});
  EXPECT_PRED2(contains, one, "with strategy single\n[cpu:0] ");
  const std::string two = two_steps({"--devices", "2xcpu"});
  EXPECT_PRED2(contains, two, "with strategy dp\n[cpu:0, cpu:1] ");
  EXPECT_EQ(digest_in(two),
            digest_in(two_steps({"--devices", "2xcpu", "--strategy", "dp"})));
}

TEST(Strategy, UsesAllDevicesIfAllAreNamed) {
  const size_t cores = allowed_cores().size();
  if (cores < 2) GTEST_SKIP() << "needs 2 cores";
  const std::string last = "cpu:" + std::to_string(cores - 1) + "] ";
  const std::string text = two_steps({"--devices", "all"});
  EXPECT_PRED2(contains, text, "with strategy dp\n[cpu:0, ");
  EXPECT_PRED2(contains, text, last);
}

TEST(Strategy, SingleTakesOneDeviceOfAuto) {
  EXPECT_PRED2(contains,
               two_steps({"--strategy", "single", "--devices", "auto"}),
               "with strategy single\n[cpu:0] ");
}

TEST(Strategy, IsDdpForSeveralRanks) {
  const Ended ended = run_lockstep(
      {"run", "--nproc-per-node", "2", "--", kProgram, "train", "--model",
       "mlp", "--max-steps", "2", "--batch-size", "8", "--no-eval"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(count_of(ended.out, "with strategy ddp"), 1) << ended.out;
  EXPECT_EQ(count_of(ended.out, "parameter_sha256"), 1) << ended.out;
}

TEST(Strategy, OfAnEmbeddedProgramFollowsTheDevicesToo) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const CommandResult result = run_command(
      {.arguments = {LOCKSTEP_BINARY_DIR "/bin/embedded_program", "--devices",
                     "2xcpu", "--max-steps", "2", "--no-eval"},
       .environment = {},
       .deadline_s = 120});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_PRED2(contains, result.out, "with strategy dp\n[cpu:0, cpu:1] ");
}

/// Trains on eight images, with one step per epoch, into `folder`/run.
std::string train_epochs(const TemporaryFolder& folder, int epochs,
                         const Words& more) {
  std::string text;
  for (char label = 0; label < 8; ++label) {
    text += label + std::string(3072, static_cast<char>(16 * label));
  }
  write_text(folder.path("data_batch_1.bin"), text);
  write_text(folder.path("test_batch.bin"), text);
  Words words{"train",
              "--model",
              "mlp",
              "--data",
              "cifar10",
              "--data-dir",
              folder.path(),
              "--batch-size",
              "8",
              "--epochs",
              std::to_string(epochs),
              "--no-eval",
              "--out-dir",
              folder.path("run")};
  words.insert(words.end(), more.begin(), more.end());
  const Ended ended = run_lockstep(words);
  EXPECT_EQ(ended.code, 0) << ended.err;
  return ended.out;
}

int64_t checkpoints_in(const std::string& folder) {
  const std::filesystem::directory_iterator entries(folder);
  return std::count_if(begin(entries), end(entries), [](const auto& entry) {
    return entry.path().filename().string().starts_with("step-");
  });
}

TEST(Checkpoints, OfEachEpochAreAllKept) {
  const TemporaryFolder folder;
  train_epochs(folder, 6, {"--checkpoint-every-epoch"});
  EXPECT_EQ(checkpoints_in(folder.path("run")), 6);
}

TEST(Checkpoints, OfEachEpochAreAsManyAsKeepSays) {
  const TemporaryFolder folder;
  train_epochs(folder, 6, {"--checkpoint-every-epoch", "--keep", "2"});
  EXPECT_EQ(checkpoints_in(folder.path("run")), 2);
}

TEST(Checkpoints, OfStepsAreTheNewestThree) {
  const TemporaryFolder folder;
  train_epochs(folder, 6, {"--checkpoint-every", "1"});
  EXPECT_EQ(checkpoints_in(folder.path("run")), 3);
}

// "Multi-GPU Training in PyTorch with Code (Part 2)" prints these rates.
TEST(Schedule, OfStepsHasTheLearningRatesOfTheArticle) {
  const TemporaryFolder folder;
  const std::string text = train_epochs(
      folder, 15, {"--schedule", "steps", "--clip-grad-norm", "0.1"});
  for (int epoch = 0; epoch < 15; ++epoch) {
    const char* rate = epoch < 4    ? "0.1000"
                       : epoch < 9  ? "0.0100"
                       : epoch < 14 ? "0.0010"
                                    : "0.0001";
    EXPECT_PRED2(contains, text,
                 "Epoch " + std::to_string(epoch) +
                     " | Batchsize: 8 | Steps: 1 | LR: " + rate + " | ");
  }
}

}  // namespace
}  // namespace lockstep::training_options_test
