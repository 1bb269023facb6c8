// A run that is stopped and goes on ends with the bits of one that was not.
#include "lockstep/train/state/resume.h"

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;

/// Stops after `steps` steps.
Stop after(int64_t steps) {
  return [left = steps]() mutable { return --left <= 0 ? SIGTERM : 0; };
}

/// "single", "dp 2", "shm 2", "tcp 4": what the steps are done with.
RunReport run_on(const std::string& what, ImageTraining options,
                 const Stop& stop = {}) {
  if (what == "single") return run_training(options, stop);
  const std::string kind = what.substr(0, what.find(' '));
  const int count = std::stoi(what.substr(kind.size()));
  if (kind != "dp") return distributed(options, count, kind, stop);
  options.strategy(Strategy::kDataParallel);
  options.devices(devices(std::to_string(count) + "xcpu"));
  return run_training(options, stop);
}

struct Resumption {
  const char* first;
  const char* second;
  int64_t stop_after;
};

void PrintTo(const Resumption& how, std::ostream* out) {
  *out << how.first << " to " << how.second << " after " << how.stop_after;
}

class Resumed : public testing::TestWithParam<Resumption> {};

TEST_P(Resumed, EndsWithTheBitsOfTheUninterruptedRun) {
  for (const auto kind :
       {tasks::OptimizerKind::kSgd, tasks::OptimizerKind::kAdamW}) {
    const TemporaryFolder folder;
    ImageTraining options = sharded_run();
    options.optimizer.optimizer = kind;
    options.optimizer.warmup_steps = 2;
    const RunReport whole = run_training(options);

    options.out_dir(folder.path("run"));
    const RunReport stopped =
        run_on(GetParam().first, options, after(GetParam().stop_after));
    EXPECT_TRUE(stopped.interrupted);
    ASSERT_EQ(stopped.steps, GetParam().stop_after);
    options.checkpoint().resume("auto");
    const RunReport resumed = run_on(GetParam().second, options);
    EXPECT_EQ(resumed.resumed_from, stopped.last_checkpoint);
    EXPECT_EQ(resumed.first_step, GetParam().stop_after);
    EXPECT_EQ(resumed.steps, whole.steps);
    EXPECT_EQ(resumed.parameter_sha256, whole.parameter_sha256);
    EXPECT_EQ(resumed.test.metrics.at("accuracy"),
              whole.test.metrics.at("accuracy"));
    EXPECT_EQ(resumed.losses,
              std::vector<double>(whole.losses.begin() + stopped.steps,
                                  whole.losses.end()));
    // The epoch's line is that of all of its batches.
    EXPECT_EQ(resumed.epochs.back().train.at("loss"),
              whole.epochs.back().train.at("loss"));
    EXPECT_EQ(resumed.epochs.back().train.at("accuracy"),
              whole.epochs.back().train.at("accuracy"));
  }
}

INSTANTIATE_TEST_SUITE_P(Resume, Resumed,
                         testing::Values(Resumption{"single", "single", 1},
                                         Resumption{"single", "single",
                                                    4},  // an epoch's end
                                         Resumption{"dp 2", "shm 2", 6},
                                         Resumption{"shm 2", "single", 3},
                                         Resumption{"tcp 4", "dp 2", 5},
                                         Resumption{"shm 4", "tcp 2", 7},
                                         Resumption{"single", "shm 4", 2}));

TEST(Resume, OfOneThatIsAtItsEndOnlyEvaluates) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.model = {.name = "resnet18"};  // has statistics
  options.max_steps(2);
  options.out_dir(folder.path("run"));
  const RunReport whole = run_on("shm 2", options);
  options.checkpoint().resume("auto");
  for (const char* what : {"single", "shm 2", "tcp 2"}) {
    const RunReport again = run_on(what, options);
    EXPECT_EQ(again.parameter_sha256, whole.parameter_sha256);
    EXPECT_EQ(again.test.metrics.at("accuracy"),
              whole.test.metrics.at("accuracy"))
        << what;
    EXPECT_EQ(again.checkpoints.saved, 0);
    EXPECT_EQ(again.last_checkpoint, whole.last_checkpoint);
  }
}

TEST(Resume, AutoStartsAtTheBeginningWhereThereIsNothing) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.checkpoint().resume("auto");
  options.out_dir(folder.path("run"));
  const RunReport report = run_training(options);
  EXPECT_EQ(report.resumed_from, "");
  EXPECT_EQ(report.first_step, 0);
  EXPECT_EQ(report.steps, 8);
}

TEST(Resume, WorksInAFolderWithAnyName) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.checkpoint().resume("auto");
  options.out_dir(folder.path("two\nlines {\"step\": 3} \xff"));
  run_training(options, after(3));
  EXPECT_EQ(run_on("shm 2", options).first_step, 3);
}

TEST(Resume, TakesShardsAndThreadsFromTheCheckpoint) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  const RunReport whole = run_training(options);
  options.out_dir(folder.path("run"));
  run_training(options, after(3));
  options.checkpoint().resume("auto");
  options.shards(0);
  options.intra_op_threads(0);
  const RunReport resumed = run_on("shm 2", options);
  EXPECT_EQ(resumed.shards, 4);
  EXPECT_EQ(resumed.intra_op_threads, 1);
  EXPECT_EQ(resumed.parameter_sha256, whole.parameter_sha256);
}

class ResumeOfAStoppedRun : public testing::Test {
 protected:
  ResumeOfAStoppedRun() {
    options_.out_dir(folder_.path("run"));
    options_.checkpoint().every(2);
    stopped_ = run_training(options_, after(4));
    options_.checkpoint().resume("auto");
  }
  std::string refusal(const std::function<void(ImageTraining&)>& change) const {
    ImageTraining changed = options_;
    change(changed);
    return error_of<CheckpointError>([&] { run_training(changed); });
  }

  const TemporaryFolder folder_;
  ImageTraining options_ = sharded_run();
  RunReport stopped_;
};

TEST_F(ResumeOfAStoppedRun, UsesTheOneBeforeADamagedOne) {
  const std::string path = stopped_.last_checkpoint + "/optimizer.safetensors";
  std::string bytes = content_of(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 16);
  write_text(path, bytes);
  const LogCapture log;
  const RunReport resumed = run_training(options_);
  EXPECT_EQ(resumed.first_step, 2);
  EXPECT_PRED2(contains, log.text(), stopped_.last_checkpoint + " is skipped");
  EXPECT_EQ(resumed.parameter_sha256,
            run_training(sharded_run()).parameter_sha256);
}

/// Changes what a manifest says, and seals it again.
void forge(const std::string& checkpoint,
           const std::function<void(nlohmann::json&)>& change) {
  const std::string name = checkpoint + "/manifest.json";
  auto object = nlohmann::json::parse(content_of(name));
  change(object);
  object.erase("manifest_xxh128");
  object["manifest_xxh128"] = checksum_of(object.dump());
  write_text(name, object.dump());
}

TEST_F(ResumeOfAStoppedRun, IsNotDoneWithoutTheStatesOfItsRandomNumbers) {
  forge(stopped_.last_checkpoint,
        [](auto& manifest) { manifest["files"].erase("random.safetensors"); });
  const LogCapture log;
  EXPECT_EQ(run_training(options_).first_step, 2);
  EXPECT_PRED2(contains, log.text(), stopped_.last_checkpoint + " is skipped");
  EXPECT_PRED2(contains, log.text(), "random.safetensors");
}

TEST_F(ResumeOfAStoppedRun, RefusesMoreSamplesThanTheBatchesHave) {
  for (const int64_t samples : {int64_t{1}, int64_t{1} << 53}) {
    forge(stopped_.last_checkpoint, [&](auto& manifest) {
      manifest["run"]["position"]["samples"] = samples;
    });
    expect_problem(refusal([](auto&) {}), ErrorCode::kCheckpointDamaged,
                   {"0 batches of 30", std::to_string(samples)});
  }
}

TEST_F(ResumeOfAStoppedRun, NamesEverySettingThatIsAnother) {
  const std::string message = refusal([](ImageTraining& options) {
    options.optimizer.lr = 0.5;
    options.batch_size(40);
  });
  expect_problem(
      message, ErrorCode::kResumeConflict,
      {"lr: 0.01", "0.5", "batch_size: 30", "40", "--allow-changes"});
  expect_problem(refusal([](auto& options) { options.data.samples = 101; }),
                 ErrorCode::kResumeConflict, {"data_sha256"});
  expect_problem(
      refusal([](auto& options) { options.model.name = "resnet18"; }),
      ErrorCode::kResumeConflict, {"resnet18", "mlp"});
  expect_problem(refusal([](auto& options) {
                   options.strategy(Strategy::kDataParallelClassic);
                 }),
                 ErrorCode::kResumeConflict,
                 {"reduction", "tree over shards", "nn.DataParallel"});
}

TEST_F(ResumeOfAStoppedRun, GoesOnWithOthersWhenAllowedTo) {
  options_.optimizer.lr = 0.5;
  options_.checkpoint().allow_changes(true);
  const LogCapture log;
  EXPECT_EQ(run_training(options_).first_step, 4);
  EXPECT_PRED2(contains, log.text(), "lr: 0.01 in the checkpoint, 0.5 now");
}

TEST_F(ResumeOfAStoppedRun, CountsItsEpochsAnewWithAnotherBatchSizeOrMoreData) {
  struct Change {
    int64_t batch_size;
    int64_t samples;
    size_t epochs;  // that end after the four steps so far
    const char* warning;
  };
  // 4 batches per epoch become 5, 10, 2 and 7.
  for (const Change& change : {Change{20, 100, 2, "batch 4 of epoch 0"},
                               Change{10, 100, 2, "batch 4 of epoch 0"},
                               Change{50, 100, 0, "batch 0 of epoch 2"},
                               Change{30, 200, 2, "batch 4 of epoch 0"}}) {
    ImageTraining changed = options_;
    changed.batch_size(change.batch_size);
    changed.data.samples = change.samples;
    changed.out_dir("");
    changed.checkpoint().resume(stopped_.last_checkpoint);
    expect_problem(error_of<CheckpointError>([&] { run_training(changed); }),
                   ErrorCode::kResumeConflict, {"--allow-changes"});
    changed.checkpoint().allow_changes(true);
    const LogCapture log;
    const RunReport report = run_training(changed);
    EXPECT_EQ(report.first_step, 4);
    EXPECT_EQ(report.epochs.size(), change.epochs) << change.batch_size;
    EXPECT_PRED2(contains, log.text(), change.warning);
  }
}

TEST_F(ResumeOfAStoppedRun, RefusesAPositionThatCanNotBe) {
  const auto refused = [&](int64_t step, int64_t epoch, int64_t batch) {
    forge(stopped_.last_checkpoint, [&](auto& manifest) {
      manifest["run"]["position"] = {
          {"step", step}, {"epoch", epoch}, {"batch", batch}, {"samples", 0}};
    });
    expect_problem(refusal([](auto& options) {
                     options.checkpoint().allow_changes(true);
                   }),
                   ErrorCode::kCheckpointDamaged, {"contradicts itself"});
  };
  refused(3, 0, 3);
  refused(4, 0, 3);
  refused(4, 1, 4);
  refused(4, 3, 0);
  refused(4, 1, 3);
}

TEST_F(ResumeOfAStoppedRun, SaysWhichSignalItWas) {
  EXPECT_EQ(stopped_.stop_signal, SIGTERM);
}

TEST_F(ResumeOfAStoppedRun, ElsewhereHasNoCheckpointOfItsOwn) {
  options_.checkpoint().resume(stopped_.last_checkpoint);
  options_.out_dir("");
  const RunReport report = run_training(options_, after(1));
  EXPECT_EQ(report.resumed_from, stopped_.last_checkpoint);
  EXPECT_EQ(report.last_checkpoint, "");
}

// A run that ended within an epoch goes on with that epoch's sums.
TEST(Resume, OfALongerRunHasTheEpochsLine) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.optimizer.schedule = tasks::ScheduleKind::kConstant;
  const RunReport whole = run_training(options);
  options.out_dir(folder.path("run"));
  options.max_steps(6);
  run_training(options);
  options.max_steps(0);
  options.checkpoint().resume("auto");
  const RunReport resumed = run_training(options);
  EXPECT_EQ(resumed.parameter_sha256, whole.parameter_sha256);
  EXPECT_EQ(resumed.epochs.back().train.at("loss"),
            whole.epochs.back().train.at("loss"));
}

TEST_F(ResumeOfAStoppedRun, WarnsWhenTheEndMovesUnderACosine) {
  options_.epochs(3);
  {
    const LogCapture log;
    EXPECT_EQ(run_training(options_).steps, 12);
    EXPECT_PRED2(contains, log.text(),
                 "total_steps: 8 in the checkpoint, 12 now");
  }
}

TEST_F(ResumeOfAStoppedRun, IsNotMixedWithAnotherRun) {
  expect_problem(
      refusal([](auto& options) { options.checkpoint().resume(""); }),
      ErrorCode::kResumeConflict,
      {options_.out_dir(), stopped_.last_checkpoint});
  const std::string first = folder_.path("run/step-00000002");
  expect_problem(
      refusal([&](auto& options) { options.checkpoint().resume(first); }),
      ErrorCode::kResumeConflict, {first, stopped_.last_checkpoint});
  ImageTraining elsewhere = options_;
  elsewhere.checkpoint().resume(first);
  elsewhere.out_dir(folder_.path("other"));
  EXPECT_EQ(run_training(elsewhere).first_step, 2);
  expect_problem(refusal([&](auto& options) {
                   options.checkpoint().resume(first);
                   options.out_dir(folder_.path("other"));
                 }),
                 ErrorCode::kResumeConflict, {first, folder_.path("other")});
}

TEST_F(ResumeOfAStoppedRun, RefusesOneThatIsOfNoTrainer) {
  const auto model = models::make({.name = "mlp", .width = 8, .depth = 1});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const std::string own =
      save_checkpoint(folder_.path("own"), *model, optimizer, {.step = 1});
  expect_problem(refusal([&](auto& options) {
                   options.checkpoint().resume(own);
                   options.out_dir("");
                 }),
                 ErrorCode::kCheckpointDamaged, {own});
}

TEST(Resume, ReadsWhatRanksWroteInParts) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.optimizer.optimizer = tasks::OptimizerKind::kAdamW;
  options.out_dir(folder.path("run"));
  const RunReport stopped = run_on("shm 2", options, after(3));
  for (const char* name : {"optimizer-00001-of-00002.safetensors",
                           "optimizer-00002-of-00002.safetensors"}) {
    EXPECT_TRUE(fs::exists(stopped.last_checkpoint + "/" + name)) << name;
  }
  fs::remove(stopped.last_checkpoint + "/optimizer-00002-of-00002.safetensors");
  options.checkpoint().resume(stopped.last_checkpoint);
  options.out_dir("");
  EXPECT_PRED2(contains,
               error_of<CheckpointError>([&] { run_training(options); }),
               "optimizer-00002-of-00002.safetensors");
}

TEST(Checkpoints, ThatCantBeWrittenAreAWarningUntilTheLast) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.out_dir(folder.path("run"));
  options.checkpoint().every(3);
  // Blocks the checkpoint of the first of steps 3, 6 and 8.
  fs::create_directory(options.out_dir());
  write_text(options.out_dir() + "/step-00000003", "a file");
  for (const char* what : {"single", "shm 2"}) {
    const LogCapture log;
    const RunReport report = run_on(what, options);
    EXPECT_EQ(report.checkpoints.saved, 3);
    EXPECT_EQ(report.checkpoints.failed, 1);
    EXPECT_PRED2(contains, log.text(), "step-00000003 was not written");
    EXPECT_EQ(find_checkpoint(options.out_dir()), report.last_checkpoint);
    for (const char* step : {"step-00000006", "step-00000008"}) {
      fs::remove_all(options.out_dir() + "/" + step);
    }
  }
  write_text(options.out_dir() + "/step-00000008", "a file");
  const LogCapture log;
  expect_problem(error_of<CheckpointError>([&] { run_training(options); }),
                 ErrorCode::kCheckpointNotSaved, {"step-00000008"});
  EXPECT_EQ(find_checkpoint(options.out_dir()),
            options.out_dir() + "/step-00000006");
}

}  // namespace
}  // namespace lockstep::training
