// Makes every error that a user can make on the command line.
// Tier: full, by case. Each case starts the program.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::errors_test {
namespace {

using Arguments = std::vector<std::string>;

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;
constexpr int kTrainingFailed = 70;

Arguments train(const Arguments& more) {
  Arguments all{"train", "--model", "mlp", "--max-steps", "2", "--no-eval"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Expects that the program ends with `code` and prints each of `parts` to
// stderr: the codes of errors, and the names and values that a user needs.
// Errors.HaveTheseTexts has the whole texts.
void expect_error(const Arguments& arguments, int code,
                  const std::vector<std::string>& parts) {
  const Ended ended = run_lockstep(arguments);
  EXPECT_EQ(ended.code, code) << ended.out << ended.err;
  for (const auto& part : parts) {
    EXPECT_PRED2(contains, ended.err, part);
  }
  for (const char* trace : {"Exception raised from", "frame #", "terminate"}) {
    EXPECT_FALSE(contains(ended.err, trace)) << ended.err;
  }
}

// Writes a folder with the files of CIFAR-10, with `records` images each.
void write_cifar10(const TemporaryFolder& folder, size_t records, char label) {
  std::string record(3073, '\x40');
  record[0] = label;
  std::string text;
  for (size_t i = 0; i < records; ++i) text += record;
  write_text(folder.path("data_batch_1.bin"), text);
  write_text(folder.path("test_batch.bin"), text);
}

Arguments train_on(const TemporaryFolder& folder) {
  return train({"--data", "cifar10", "--data-dir", folder.path()});
}

TEST(Errors, UnknownDevice) {
  expect_error(train({"--devices", "tpu:0"}), kBadUsage,
               {in_brackets(ErrorCode::kNoSuchDevice), "tpu:0"});
}

TEST(Errors, DeviceThatIsNotThere) {
  expect_error(train({"--devices", "cuda:99"}), kBadUsage,
               {in_brackets(ErrorCode::kNoSuchDevice), "cuda:99"});
}

TEST(Errors, OneSliceOfSeveral) {
  expect_error(train({"--devices", "cpu:2"}), kBadUsage,
               {in_brackets(ErrorCode::kNoSuchDevice), "'cpu:2'", "2xcpu"});
}

TEST(Errors, MoreSlicesThanCores) {
  const size_t cores = allowed_cores().size();
  const std::string list = std::to_string(cores + 1) + "xcpu";
  expect_error(train({"--devices", list}), kBadUsage,
               {in_brackets(ErrorCode::kNoSuchDevice), std::to_string(cores)});
}

TEST(Errors, TheSameDeviceTwice) {
  expect_error(train({"--strategy", "dp", "--devices", "cpu:0,cpu:0"}),
               kBadUsage, {in_brackets(ErrorCode::kBadOption), "cpu:0"});
}

TEST(Errors, Cifar10WithoutAFolder) {
  expect_error(train({"--data", "cifar10"}), kBadUsage, {"--data-dir"});
}

TEST(Errors, MissingDataFolder) {
  const TemporaryFolder folder;
  expect_error(train({"--data", "cifar10", "--data-dir", folder.path("no")}),
               kFailed,
               {in_brackets(ErrorCode::kFileAccess), folder.path("no")});
}

TEST(Errors, EmptyDataFolder) {
  const TemporaryFolder folder;
  expect_error(train_on(folder), kFailed,
               {in_brackets(ErrorCode::kMalformedData), folder.path()});
}

TEST(Errors, TruncatedFile) {
  const TemporaryFolder folder;
  write_cifar10(folder, 8, 1);
  const std::string file = folder.path("data_batch_1.bin");
  std::filesystem::resize_file(file, 8 * 3073 - 5);
  expect_error(train_on(folder), kFailed,
               {in_brackets(ErrorCode::kMalformedData), file, "3073",
                std::to_string(8 * 3073 - 5)});
}

TEST(Errors, LabelOverNine) {
  const TemporaryFolder folder;
  write_cifar10(folder, 8, 10);
  expect_error(train_on(folder), kFailed,
               {in_brackets(ErrorCode::kMalformedData),
                folder.path("data_batch_1.bin"), "10"});
}

TEST(Errors, UnknownModel) {
  expect_error({"train", "--model", "resnet81"}, kBadUsage,
               {"--model", "'resnet81'", "'resnet18'"});
}

TEST(Errors, UnknownStrategy) {
  expect_error(train({"--strategy", "dpp"}), kBadUsage,
               {"--strategy", "'dpp'", "'dp'"});
}

TEST(Errors, UnknownOption) {
  expect_error(train({"--batchsize", "64"}), kBadUsage,
               {"'--batchsize'", "'--batch-size'", "lockstep help train"});
}

TEST(Errors, UnknownCommand) {
  expect_error({"trian"}, kBadUsage, {"'trian'", "'train'"});
  expect_error({"help", "splt"}, kBadUsage, {"'splt'", "'split'"});
}

TEST(Errors, NoCommand) { expect_error({}, kBadUsage, {"Usage:", "train"}); }

TEST(Errors, NumbersThatAreNone) {
  const std::vector<Arguments> cases{
      {"--batch-size", "0"},   {"--batch-size", "-3"}, {"--batch-size", "many"},
      {"--epochs", "1.5"},     {"--lr", "-0.1"},       {"--lr", "nan"},
      {"--max-steps", "-1"},   {"--shards", "x"},      {"--seed", "-1"},
      {"--milestones", "1,x"}, {"--keep", "0"},        {"--momentum", "-1"}};
  for (const auto& pair : cases) {
    expect_error(train(pair), kBadUsage, {"[usage]", pair[0]});
  }
}

TEST(Errors, OptionsThatContradict) {
  expect_error(train({"--optimizer", "adamw", "--nesterov"}), kBadUsage,
               {"--nesterov"});
  expect_error(train({"--nesterov", "--momentum", "0"}), kBadUsage,
               {"--nesterov", "--momentum"});
  expect_error(train({"--milestones", "3"}), kBadUsage,
               {"--milestones", "--schedule steps"});
  expect_error(train({"--data-dir", "x"}), kBadUsage,
               {"--data-dir", "--data cifar10"});
}

TEST(Errors, ShardsThatTheDevicesCanNotShare) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  expect_error(
      train({"--strategy", "dp", "--devices", "2xcpu", "--shards", "1"}),
      kBadUsage,
      {in_brackets(ErrorCode::kBadOption), "--shards", "cpu:0, cpu:1"});
  expect_error(
      train({"--strategy", "dp", "--devices", "2xcpu", "--shards", "3"}), 0,
      {"3 shards", "2 devices"});
}

TEST(Errors, SeveralDevicesForStrategySingle) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  for (const char* list : {"2xcpu", "cpu:0,cpu:1"}) {
    expect_error(train({"--strategy", "single", "--devices", list}), kBadUsage,
                 {in_brackets(ErrorCode::kBadOption), "strategy single",
                  "cpu:0, cpu:1", "--strategy dp"});
  }
}

TEST(Errors, BatchLargerThanTheDataset) {
  const TemporaryFolder folder;
  write_cifar10(folder, 8, 1);
  auto arguments = train_on(folder);
  arguments.insert(arguments.end(), {"--batch-size", "9"});
  expect_error(
      arguments, kBadUsage,
      {in_brackets(ErrorCode::kBadOption), "8 images", "9", "--batch-size 8"});
  arguments.back() = "8";
  expect_error(arguments, 0, {});
}

TEST(Errors, BatchSmallerThanTheDevicesIsAllowedWithAWarning) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  expect_error(
      train({"--strategy", "dp", "--devices", "2xcpu", "--batch-size", "1"}), 0,
      {"cpu:1"});
}

TEST(Errors, CheckpointOfAnotherModel) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  ASSERT_EQ(run_lockstep(train({"--out-dir", run, "--quiet"})).code, 0);
  expect_error(
      {"train", "--model", "resnet18", "--max-steps", "1", "--init-from", run},
      kFailed, {in_brackets(ErrorCode::kStateMismatch), "conv1.weight"});
}

TEST(Errors, NoCheckpoint) {
  const TemporaryFolder folder;
  expect_error({"eval", "--checkpoint", folder.path()}, kFailed,
               {in_brackets(ErrorCode::kCheckpointMissing), folder.path()});
  expect_error({"eval"}, kBadUsage, {"--checkpoint"});
}

TEST(Errors, LossThatIsNotFinite) {
  const TemporaryFolder folder;
  expect_error(train({"--lr", "1e30", "--schedule", "constant", "--out-dir",
                      folder.path("run"), "--checkpoint-every", "1"}),
               kTrainingFailed,
               {in_brackets(ErrorCode::kNotFinite), "step 1", "--lr",
                folder.path("run")});
}

TEST(Errors, FolderThatCanNotBeWritten) {
  const TemporaryFolder folder;
  write_text(folder.path("file"), "");
  expect_error(train({"--out-dir", folder.path("file/run")}), kFailed,
               {in_brackets(ErrorCode::kFileAccess), folder.path("file")});
  expect_error(
      train({"--report", folder.path("no/run.json")}), kFailed,
      {in_brackets(ErrorCode::kFileAccess), folder.path("no/run.json")});
}

// The errors that a new user sees first, word for word. Changes to them must be
// deliberate.
TEST(Errors, HaveTheseTexts) {
  const std::vector<std::pair<Arguments, std::string>> texts{
      {{"trian"}, "[usage] unknown command 'trian'; did you mean 'train'?"},
      {train({"--batchsize", "64"}),
       "[usage] unknown option '--batchsize'; did you mean '--batch-size'? See "
       "`lockstep help train`\n"},
      {train({"--batch-size", "0"}),
       "[usage] --batch-size: expected a whole number of at least 1, got '0'; "
       "see `lockstep help train`\n"},
      {{"train", "--model", "resnet81"},
       "[usage] --model: expected one of cnn, mlp, resnet18, resnet34, "},
      {{"train", "--strategy", "dpp"},
       "[usage] --strategy: expected one of single, dp, dp-classic, ddp, got "
       "'dpp'; did you mean 'dp'? See `lockstep help train`\n"},
      {train({"--data", "cifar10"}),
       "[usage] --data cifar10 needs --data-dir DIR, the folder with "
       "data_batch_*.bin and test_batch.bin; to train without files, use "
       "--data synthetic\n"},
      {train({"--data", "cifar10", "--data-dir", "/no/such/folder"}),
       "[data] can't open folder /no/such/folder; expected the folder of "
       "CIFAR-10's binary files, got no such folder; name one with --data-dir "
       "[file-access]\n"},
      {train({"--devices", "tpu:0"}),
       "[device] unknown device 'tpu:0'; expected auto or all, a count (2, "
       "2xcpu "
       "or 2xcuda), cpu, cuda, or a list like cuda:0,cuda:1 or cpu:0,cpu:1; "
       "this "
       "machine has "},
      {{"eval"},
       "[usage] eval needs --checkpoint DIR: a checkpoint, or the --out-dir of "
       "a run\n"},
  };
  for (const auto& [arguments, text] : texts) {
    EXPECT_EQ(run_lockstep(arguments).err.substr(0, text.size()), text);
  }
}

TEST(Errors, CtrlCEndsTheRunWithACheckpointThatLoads) {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  Program program({"train", "--model", "mlp", "--epochs", "1000", "--log-every",
                   "1", "--out-dir", run});
  ASSERT_TRUE(program.wait_for_output("step 1/")) << program.err();
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT) << program.err();
  EXPECT_PRED2(contains, program.err(), "stopped by Ctrl-C after step");
  const std::string checkpoint = find_checkpoint(run);
  EXPECT_PRED2(contains, program.err(), "continue from " + checkpoint);
  EXPECT_PRED2(contains, content_of(run + "/run.json"),
               "\"interrupted\": true");
  const auto eval = run_lockstep({"eval", "--checkpoint", checkpoint});
  EXPECT_EQ(eval.code, 0) << eval.err;
}

}  // namespace
}  // namespace lockstep::errors_test
