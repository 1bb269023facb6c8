#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/tasks/images/evaluate_images.h"
#include "lockstep/train/run/run_training.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

// A run of an instant: a small mlp on a few synthetic images.
ImageTraining small_run() {
  ImageTraining options;
  options.model = {.name = "mlp", .width = 32, .depth = 2};
  options.data = {.name = "synthetic", .samples = 200};
  options.devices(devices("cpu"));
  options.batch_size(32);
  options.max_steps(6);
  options.optimizer.lr = 0.01;
  options.seed(3);
  options.log().progress(false);
  options.evaluation().enabled(false);
  return options;
}

ImageTraining on_two_slices(ImageTraining options, Strategy strategy) {
  options.strategy(strategy);
  options.devices(devices("2xcpu"));
  return options;
}

bool has_two_cores() { return allowed_cores().size() >= 2; }

TEST(Trainer, GivesTheSameBitsTwice) {
  const auto first = run_training(small_run());
  const auto second = run_training(small_run());
  EXPECT_EQ(first.parameter_sha256.size(), 64u);
  EXPECT_EQ(first.parameter_sha256, second.parameter_sha256);
  EXPECT_EQ(first.losses, second.losses);
}

TEST(Trainer, GivesOtherBitsForAnotherSeed) {
  auto options = small_run();
  const auto first = run_training(options);
  options.seed(4);
  EXPECT_NE(first.parameter_sha256, run_training(options).parameter_sha256);
}

TEST(Trainer, GivesTheSameBitsOnOneDeviceAndOnTwo) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  for (const int64_t shards : {2, 4}) {
    for (const auto kind :
         {tasks::OptimizerKind::kSgd, tasks::OptimizerKind::kAdamW}) {
      auto options = small_run();
      options.shards(shards);
      options.optimizer.optimizer = kind;
      options.clip_grad_norm(shards == 4 ? 0.5 : 0);
      const auto single = run_training(options);
      const auto parallel =
          run_training(on_two_slices(options, Strategy::kDataParallel));
      EXPECT_EQ(single.parameter_sha256, parallel.parameter_sha256);
      EXPECT_EQ(single.losses, parallel.losses);
    }
  }
}

TEST(Trainer, GivesTheSameBitsWithBatchNorm) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  auto options = small_run();
  options.model = {.name = "resnet18"};
  options.batch_size(8);
  options.max_steps(2);
  options.shards(2);
  options.channels_last = true;
  const auto single = run_training(options);
  const auto parallel =
      run_training(on_two_slices(options, Strategy::kDataParallel));
  EXPECT_EQ(single.parameter_sha256, parallel.parameter_sha256);
}

// Without BatchNorm the textbook's machine computes the same function, with
// its sums in another order.
TEST(Trainer, ClassicFollowsTheSameCurve) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  auto options = small_run();
  options.clip_grad_norm(0.5);
  const auto single = run_training(options);
  const auto classic =
      run_training(on_two_slices(options, Strategy::kDataParallelClassic));
  ASSERT_EQ(single.losses.size(), classic.losses.size());
  for (size_t step = 0; step < single.losses.size(); ++step) {
    EXPECT_NEAR(single.losses[step], classic.losses[step],
                1e-4 * single.losses[step]);
  }
}

TEST(Trainer, LearnsAFewImagesByHeart) {
  auto options = small_run();
  options.model.width = 128;
  options.data.samples = 32;
  options.epochs(0);
  options.max_steps(60);
  options.augment = false;
  const auto report = run_training(options);
  EXPECT_GT(report.losses.front(), 2);  // ln(10): nothing is known yet
  EXPECT_LT(report.losses.back(), 0.2);
  EXPECT_EQ(report.epochs.back().train.at("accuracy"), 1);
}

TEST(Trainer, CountsWhatEachDeviceDid) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  auto options = on_two_slices(small_run(), Strategy::kDataParallel);
  options.max_steps(0);  // one epoch: 6 batches of 32 and one of 8
  const auto report = run_training(options);
  EXPECT_EQ(report.steps, 7);
  EXPECT_EQ(report.losses.size(), 7u);
  EXPECT_EQ(report.split, (std::vector<int64_t>{16, 16}));
  ASSERT_EQ(report.devices.size(), 2u);
  for (const auto& device : report.devices) {
    EXPECT_EQ(device.samples, 100);
    EXPECT_GT(device.busy_fraction, 0);
    EXPECT_LE(device.busy_fraction, 1);
    EXPECT_GT(device.memory_peak_bytes, 0);
  }
  EXPECT_EQ(report.parameter_bytes, 4 * report.parameters);
  EXPECT_EQ(report.optimizer_state_bytes, 4 * report.parameters);
  ASSERT_EQ(report.epochs.size(), 1u);
}

TEST(Trainer, GoesThroughAsManyEpochsAsMaxStepsNeeds) {
  auto options = small_run();
  options.epochs(0);
  options.max_steps(16);
  const auto report = run_training(options);
  EXPECT_EQ(report.steps, 16);
  EXPECT_EQ(report.epochs.size(), 3u);
}

TEST(Trainer, PrintsTheEpochLineAndTheTestAccuracy) {
  auto options = small_run();
  options.log().progress(true);
  options.evaluation().enabled(true);
  options.optimizer.schedule = tasks::ScheduleKind::kConstant;
  testing::internal::CaptureStdout();
  const auto report = run_training(options);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_PRED2(contains, text,
               "[cpu:0] Epoch 0 | Batchsize: 32 | Steps: 6 | LR: 0.0100 | "
               "Loss: ");
  EXPECT_PRED2(contains, text, "[cpu:0] Test Acc: ");
  EXPECT_PRED2(contains, text, report.parameter_sha256);
}

TEST(Trainer, StopsWithoutAnUpdateWhenTheLossIsNotFinite) {
  const TemporaryFolder folder;
  auto options = small_run();
  options.optimizer.lr = 1e30;
  options.optimizer.momentum = 0;
  options.optimizer.schedule = tasks::ScheduleKind::kConstant;
  options.out_dir(folder.path("run"));
  options.checkpoint().every(1);
  const auto message = error_of<TrainError>([&] { run_training(options); });
  expect_problem(message, ErrorCode::kNotFinite,
                 {"step 1", "gradient of parameter '", "--lr",
                  options.out_dir() + "/step-00000001"});
  EXPECT_EQ(read_checkpoint_info(find_checkpoint(options.out_dir())).step, 1);
}

TEST(Trainer, StopsWhenAskedAndWritesACheckpoint) {
  const TemporaryFolder folder;
  auto options = small_run();
  options.out_dir(folder.path("run"));
  options.evaluation().enabled(true);
  int polled = 0;
  const auto report =
      run_training(options, [&polled] { return ++polled == 2; });
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.test.samples, 0);
  const auto info = read_checkpoint_info(report.last_checkpoint);
  EXPECT_EQ(info.step, 2);
  EXPECT_EQ(info.parameter_sha256, report.parameter_sha256);
  const auto json =
      nlohmann::json::parse(content_of(folder.path("run/run.json")));
  EXPECT_EQ(json["interrupted"], true);
}

TEST(Trainer, StartsFromACheckpoint) {
  const TemporaryFolder folder;
  auto options = small_run();
  options.out_dir(folder.path("run"));
  const auto first = run_training(options);
  options.out_dir().clear();
  options.seed(99);  // other initial weights, were they used
  options.optimizer.lr = 0;
  options.optimizer.weight_decay = 0;
  for (const auto& from :
       {folder.path("run"), first.last_checkpoint + "/model.safetensors"}) {
    options.init_from(from);
    EXPECT_EQ(run_training(options).parameter_sha256, first.parameter_sha256);
  }
}

TEST(Trainer, WarnsOfIdleDevices) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  auto options = on_two_slices(small_run(), Strategy::kDataParallel);
  options.batch_size(1);
  options.max_steps(1);
  const LogCapture log;
  const auto report = run_training(options);
  EXPECT_PRED2(contains, log.text(), "idle");
  EXPECT_PRED2(contains, log.text(), "cpu:1");
  EXPECT_EQ(report.devices[1].samples, 0);
}

TEST(Evaluate, CountsEverySampleOnceWhateverTheDevices) {
  if (!has_two_cores()) GTEST_SKIP() << "needs 2 cores";
  const TemporaryFolder folder;
  auto options = small_run();
  options.out_dir(folder.path("run"));
  run_training(options);

  tasks::EvalOptions eval;
  eval.checkpoint = options.out_dir();
  eval.data = {.name = "synthetic", .samples = 505};  // 101 to test
  eval.devices = devices("cpu");
  eval.batch_size = 101;
  const auto whole = tasks::evaluate_checkpoint(eval).test;
  EXPECT_EQ(whole.samples, 101);
  // Batches of 20 and a last one of 1, of which the second device gets none.
  eval.devices = devices("2xcpu");
  eval.batch_size = 20;
  const auto parts = tasks::evaluate_checkpoint(eval).test;
  EXPECT_EQ(parts.samples, 101);
  EXPECT_DOUBLE_EQ(parts.metrics.at("accuracy"), whole.metrics.at("accuracy"));
  EXPECT_NEAR(parts.metrics.at("loss"), whole.metrics.at("loss"), 1e-5);
}

}  // namespace
}  // namespace lockstep::training
