// Runs whose ranks send each other less than all gradients in every step.
#include <gtest/gtest.h>

#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSteps = 8;

/// 8 steps of SGD without momentum.
ImageTraining run_with(const CommunicationOptions& communication) {
  ImageTraining options = sharded_run();
  options.batch_size(20);
  options.epochs(0);
  options.max_steps(kSteps);
  options.loading().drop_last(true);
  options.optimizer.momentum = 0;
  options.communication(communication);
  return options;
}

RunReport trained(const ImageTraining& options) {
  return distributed(options, kRanks, "tcp");
}

CommunicationOptions local(int64_t steps, OuterOptimizer optimizer) {
  return CommunicationOptions().local_steps(steps).outer_optimizer(optimizer);
}

double bytes_of(const CommunicationOptions& communication) {
  return static_cast<double>(trained(run_with(communication)).sent_bytes);
}

TEST(Communication, OfEveryStepAveragedIsThatOfGradients) {
  const RunReport plain = trained(run_with({}));
  const RunReport averaged =
      trained(run_with(local(1, OuterOptimizer::kAverage)));
  ASSERT_EQ(averaged.losses.size(), plain.losses.size());
  for (size_t i = 0; i < plain.losses.size(); ++i) {
    // The mean of updated parameters, and not an update with a mean: rounded
    // elsewhere.
    EXPECT_NEAR(averaged.losses[i], plain.losses[i], 1e-4) << i;
  }
  EXPECT_NEAR(averaged.test.metrics.at("loss"), plain.test.metrics.at("loss"),
              1e-4);
}

TEST(Communication, IsCounted) {
  const double plain = bytes_of({});
  const double bf16 =
      bytes_of(CommunicationOptions().compression(GradCompression::kBFloat16)) /
      plain;
  EXPECT_GT(bf16, 0.45);
  EXPECT_LT(bf16, 0.6);
  // Plain in the first two of eight steps.
  EXPECT_LT(bytes_of(CommunicationOptions()
                         .compression(GradCompression::kPowerSgd)
                         .powersgd_rank(1)) /
                plain,
            0.4);
  EXPECT_LT(bytes_of(local(4, OuterOptimizer::kNesterov)) / plain, 0.3);
}

TEST(Communication, OfLocalStepsGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  ImageTraining options = run_with(local(2, OuterOptimizer::kNesterov));
  options.optimizer.momentum = 0.9;
  options.checkpoint().every(4);
  options.out_dir(folder.path("whole"));
  const std::string expected = trained(options).parameter_sha256;
  options.checkpoint().resume(folder.path("whole") + "/step-00000004");
  options.out_dir(folder.path("rest"));
  EXPECT_EQ(trained(options).parameter_sha256, expected);
  // Each rank's momentum is its own.
  options.checkpoint().resume(folder.path("whole") + "/step-00000004");
  EXPECT_EQ(error_code_of([&] { distributed(options, 4, "tcp"); }),
            ErrorCode::kResumeConflict);
}

TEST(Communication, OfPowerSgdGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  ImageTraining options = run_with(CommunicationOptions()
                                       .compression(GradCompression::kPowerSgd)
                                       .powersgd_rank(1));
  options.checkpoint().every(1);
  options.checkpoint().keep(10);
  options.out_dir(folder.path("whole"));
  const std::string expected = trained(options).parameter_sha256;
  // In the first two steps all is sent; the third one takes what was drawn.
  for (const int step : {1, 2, 3, 6}) {
    options.checkpoint().resume(folder.path("whole") + "/step-0000000" +
                                std::to_string(step));
    options.out_dir(folder.path("rest-" + std::to_string(step)));
    EXPECT_EQ(trained(options).parameter_sha256, expected) << step;
  }
  // Each rank has its own compression error, so another number of ranks
  // continues without it.
  options.out_dir(folder.path("more"));
  EXPECT_NE(distributed(options, 4, "tcp").parameter_sha256, expected);
  // And a run that sends all has nothing to load.
  options.communication().compression(GradCompression::kNone);
  options.checkpoint().allow_changes(true);
  options.out_dir(folder.path("all"));
  EXPECT_EQ(trained(options).steps, kSteps);
}

// Ranks of one host share the state of the optimizer, but not with a hook.
TEST(Communication, OfPowerSgdGoesOnWithTheSameBitsOverSharedMemory) {
  for (const bool is_adamw : {false, true}) {
    const TemporaryFolder folder;
    ImageTraining options =
        run_with(CommunicationOptions()
                     .compression(GradCompression::kPowerSgd)
                     .powersgd_rank(1));
    options.optimizer.momentum = 0.9;
    if (is_adamw) options.optimizer.optimizer = tasks::OptimizerKind::kAdamW;
    options.checkpoint().every(4);
    options.out_dir(folder.path("whole"));
    const RunReport whole = distributed(options, kRanks, "shm");
    options.checkpoint().resume(folder.path("whole") + "/step-00000004");
    options.out_dir(folder.path("rest"));
    EXPECT_EQ(distributed(options, kRanks, "shm").parameter_sha256,
              whole.parameter_sha256);
    // As between hosts.
    options.checkpoint().resume().clear();
    options.out_dir().clear();
    options.checkpoint().every(0);
    const RunReport tcp = distributed(options, kRanks, "tcp");
    ASSERT_EQ(whole.losses.size(), tcp.losses.size());
    for (size_t i = 0; i < tcp.losses.size(); ++i) {
      EXPECT_NEAR(whole.losses[i], tcp.losses[i], 1e-4) << i;
    }
  }
}

TEST(Communication, OfLocalStepsEndsWithAnOuterStep) {
  ImageTraining options = run_with(local(3, OuterOptimizer::kAverage));
  EXPECT_EQ(trained(options).steps, kSteps);
  options.communication().local_steps(100);
  const RunReport report = trained(options);
  EXPECT_EQ(report.steps, kSteps);
  EXPECT_GT(report.test.samples, 0);
}

TEST(Communication, RefusesWhatHasNoMeaning) {
  const auto code_with = [](auto change) {
    ImageTraining options = run_with(local(4, OuterOptimizer::kNesterov));
    options.strategy(Strategy::kDistributed);
    change(options);
    return error_code_of([&] { make_plan(options); });
  };
  EXPECT_EQ(code_with([](ImageTraining& options) {
              options.strategy(Strategy::kSingle);
            }),
            ErrorCode::kBadOption);
  EXPECT_EQ(
      code_with([](ImageTraining& options) { options.checkpoint().every(6); }),
      ErrorCode::kBadOption);
  EXPECT_EQ(
      code_with([](ImageTraining& options) { options.evaluation().every(2); }),
      ErrorCode::kBadOption);
  EXPECT_EQ(code_with([](ImageTraining& options) {
              options.zero(ZeroStage::kOptimizerState);
            }),
            ErrorCode::kBadOption);
  EXPECT_EQ(code_with([](ImageTraining& options) {
              options.precision(Precision::kFloat16);
            }),
            ErrorCode::kBadOption);
  EXPECT_EQ(code_with([](ImageTraining& options) {
              options.communication().outer_momentum(1);
            }),
            ErrorCode::kBadOption);
  EXPECT_EQ(error_code_of([] { parse_grad_compression("bf61"); }),
            ErrorCode::kUnknownName);
  EXPECT_EQ(error_code_of([] { parse_outer_optimizer("mean"); }),
            ErrorCode::kUnknownName);
}

}  // namespace
}  // namespace lockstep::training
