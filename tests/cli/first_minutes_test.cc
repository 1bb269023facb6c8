// Tests the first steps of a new user: usage errors, and `eval` after `train`.
// Tier: full, by case. Each case starts the program.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::first_minutes_test {
namespace {

using Words = std::vector<std::string>;

Words train(const Words& more) {
  Words words{"train", "--max-steps", "3", "--batch-size", "8", "--no-eval"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(DdpUsageErrors, AreFoundBeforeRanksStart) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--shards", "1"},
       "1 shard can't be shared by 2 devices (cpu:0, cpu:1)"},
      {{"--backend", "nccl"}, "--backend nccl is for cuda devices"},
      {{"--nesterov", "--momentum", "0"}, "--nesterov needs a --momentum"},
      {{"--resume", "auto"}, "--resume auto needs --out-dir"},
      {{"--data", "cifar10"}, "--data-dir"}};
  for (const auto& [words, message] : cases) {
    Words all = train(words);
    all.insert(all.end(), {"--strategy", "ddp", "--devices", "2xcpu"});
    const auto ended = run_lockstep(all);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_EQ(count_of(ended.err, message), 1) << ended.err;
    EXPECT_FALSE(contains(ended.err, "[launch]")) << ended.err;
  }
}

// Writes records in CIFAR-10's format.
void write_cifar10(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::string record(3073, '\x40');
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    std::string text;
    for (char label = 0; label < 10; ++label) {
      record[0] = label;
      text += record;
    }
    write_text(folder + "/" + name, text);
  }
}

TEST(Eval, TakesTheDatasetOfTheCheckpoint) {
  const TemporaryFolder folder;
  const std::string data = folder.path("images");
  const std::string run = folder.path("run");
  write_cifar10(data);
  const auto trained = run_lockstep(
      train({"--data", "cifar10", "--data-dir", data, "--out-dir", run}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_PRED2(contains, trained.err,
               "lacks data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, "
               "data_batch_5.bin of CIFAR-10: there are 10 images");

  const auto there = run_lockstep({"eval", "--checkpoint", run});
  EXPECT_EQ(there.code, 0) << there.err;
  EXPECT_PRED2(contains, there.out, "on the test split of cifar10 in " + data);
  EXPECT_PRED2(contains, there.out, "Samples: 10\n");
  // A different folder can be given.
  const auto other =
      run_lockstep({"eval", "--checkpoint", run, "--data", "synthetic"});
  EXPECT_PRED2(contains, other.out, "Samples: 2000\n");

  std::filesystem::rename(data, folder.path("moved"));
  const auto gone = run_lockstep({"eval", "--checkpoint", run});
  EXPECT_EQ(gone.code, 1);
  expect_problem(gone.err, ErrorCode::kFileAccess, {data, "--data-dir"});
  const auto moved = run_lockstep(
      {"eval", "--checkpoint", run, "--data-dir", folder.path("moved")});
  EXPECT_PRED2(contains, moved.out, "Samples: 10\n");
  // The run continues from where its data are now.
  const auto resumed = run_lockstep(
      train({"--data", "cifar10", "--data-dir", folder.path("moved"),
             "--out-dir", run, "--resume", "auto"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

}  // namespace
}  // namespace lockstep::first_minutes_test
