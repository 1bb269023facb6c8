// Runs in which a bit of one rank changes in silence.
#include "lockstep/train/run/state_guard.h"

#include <atomic>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/train/run_optimizer.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::train {
namespace {

enum class What {
  kParameter,
  kOptimizerState,
  kGradient,     ///< the sum that a rank updates with
  kOwnGradient,  ///< what a rank computes, before the sum
};

/// One bit of one rank, after one step; `times` over all attempts.
struct Flip {
  int rank = 1;
  int64_t step = 7;
  What what = What::kParameter;
  int times = 1;
};

// Flips a low bit, so that the loss changes only slightly or not at all.
void flip_a_bit(const torch::Tensor& tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[tensor.nbytes() / 2] ^= 4U;
}

class Flipper : public Callback {
 public:
  Flipper(const Flip& flip, int rank, std::atomic<int>& left,
          std::function<torch::Tensor()> target)
      : flip_(flip), rank_(rank), left_(left), target_(std::move(target)) {}
  void after_step(const RunState& at, const Metrics&) override {
    if (at.step != flip_.step || rank_ != flip_.rank || left_-- <= 0) return;
    flip_a_bit(target_());
  }

 private:
  Flip flip_;
  int rank_;
  std::atomic<int>& left_;
  std::function<torch::Tensor()> target_;
};

/// Has the first gradients that this rank computes in a step come out wrong.
class WrongProcessor : public Callback {
 public:
  WrongProcessor(const Flip& flip, int rank, std::atomic<int>& left)
      : flip_(flip), rank_(rank), left_(left) {}
  void before_step(const RunState& at) override {
    const bool is_due = at.step + 1 >= flip_.step && rank_ == flip_.rank;
    is_wrong_ = is_due && left_-- > 0;
  }
  /// May be called from the thread of any shard.
  void compute(const torch::Tensor& output) {
    if (!is_wrong_.exchange(false)) return;
    output.register_hook([](const torch::Tensor& gradient) {
      torch::Tensor wrong = gradient.clone();
      flip_a_bit(wrong);
      return wrong;
    });
  }

 private:
  Flip flip_;
  int rank_;
  std::atomic<int>& left_;
  std::atomic<bool> is_wrong_{false};
};

/// SGD that flips a bit of the gradient that it is given, the sum over all
/// ranks, when it is told to.
class FlippingSgd : public optim::Optimizer {
 public:
  FlippingSgd(const std::vector<torch::Tensor>& parameters,
              const optim::SGDOptions& options,
              std::function<bool(int64_t)> is_due)
      : Optimizer(parameters, options.lr()),
        sgd_(optim::sgd(parameters, options)),
        is_due_(std::move(is_due)) {}

  int64_t state_bytes() const override { return sgd_->state_bytes(); }
  OptimizerState state_dict() const override { return sgd_->state_dict(); }
  void load_state_dict(const OptimizerState& state) override {
    sgd_->load_state_dict(state);
  }

 protected:
  void count_step(const std::vector<bool>& has_gradient) override {
    sgd_->begin_step(has_gradient);
  }
  void update_block(size_t block, const torch::Tensor& /*parameter*/,
                    const torch::Tensor& gradient) override {
    if (block == 0 && is_due_(steps())) flip_a_bit(gradient);
    sgd_->update(static_cast<int64_t>(block), gradient);
  }

 private:
  std::unique_ptr<optim::Optimizer> sgd_;
  std::function<bool(int64_t)> is_due_;  // in this step, counted from 1
};

/// Trains images; its callback has the model's and the optimizer's memory.
class FlippingTask : public tasks::ImageTask {
 public:
  FlippingTask(const tasks::ImageOptions& options, const Flip& flip, int rank,
               std::atomic<int>& left)
      : ImageTask(options),
        options_(options.optimizer),
        flip_(flip),
        rank_(rank),
        left_(left) {}

  ModuleSource make_model(const torch::Device& device) override {
    auto module = ImageTask::make_model(device);
    read_ = module.read;
    return module;
  }
  std::unique_ptr<RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override {
    auto optimizer = flip_.what == What::kGradient
                         ? make_run_optimizer(make_flipping_sgd(make_state))
                         : ImageTask::make_optimizer(make_state);
    optimizer_ = optimizer.get();
    return optimizer;
  }
  LossAndMetrics loss(const c10::IValue& output,
                      const c10::IValue& target) const override {
    if (processor_) processor_->compute(output.toTensor());
    return ImageTask::loss(output, target);
  }
  std::vector<std::shared_ptr<Callback>> callbacks() override {
    if (flip_.what == What::kGradient) return {};
    if (flip_.what == What::kOwnGradient) {
      processor_ = std::make_shared<WrongProcessor>(flip_, rank_, left_);
      return {processor_};
    }
    return {std::make_shared<Flipper>(flip_, rank_, left_, [this] {
      return flip_.what == What::kParameter
                 ? read_().parameters.front().second
                 : optimizer_->state_dict().begin()->second;
    })};
  }

 private:
  // As the task's own is, without a schedule.
  std::unique_ptr<FlippingSgd> make_flipping_sgd(
      const optim::StateFactory& make_state) {
    std::vector<torch::Tensor> parameters;
    for (const auto& [name, parameter] : read_().parameters) {
      parameters.push_back(parameter);
    }
    return std::make_unique<FlippingSgd>(
        parameters,
        optim::SGDOptions(options_.lr)
            .momentum(options_.momentum)
            .weight_decay(options_.weight_decay)
            .make_state(make_state),
        [this](int64_t step) {
          return step == flip_.step && rank_ == flip_.rank && left_-- > 0;
        });
  }

  tasks::OptimizerOptions options_;
  Flip flip_;
  int rank_;
  std::atomic<int>& left_;
  std::function<ModuleHandle()> read_;
  RunOptimizer* optimizer_ = nullptr;
  std::shared_ptr<WrongProcessor> processor_;
};

/// Rank 0's report of a run whose ranks are threads.
RunReport run_with(const Flip& flip, int ranks, const ImageTraining& options,
                   const std::string& backend = "tcp") {
  std::atomic<int> left = flip.times;
  return distributed_by(options, ranks, backend, [&](const ImageTraining& own) {
    FlippingTask task(own, flip, own.world.rank(), left);
    return run_training(task, own, {.world = own.world});
  });
}

/// 24 steps with momentum, compared after each fourth.
ImageTraining compared_run() {
  ImageTraining options = sharded_run();
  options.batch_size(20);
  options.epochs(0);
  options.max_steps(24);
  options.verify().every(4);
  return options;
}

RunReport quiet(int ranks) {
  return run_with({.times = 0}, ranks, compared_run());
}

TEST(StateGuard, FindsAFlippedBitAndTheRunEndsAsTheQuietOne) {
  for (const What what :
       {What::kParameter, What::kOptimizerState, What::kGradient}) {
    const RunReport expected =
        run_with({.what = what, .times = 0}, 2, compared_run());
    EXPECT_EQ(expected.recoveries, 0);
    for (const int rank : {0, 1}) {
      LogCapture log;
      const RunReport report =
          run_with({.rank = rank, .what = what}, 2, compared_run());
      EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
      EXPECT_EQ(report.losses, expected.losses);
      EXPECT_EQ(report.recoveries, 1);
      // Within 4 steps after the seventh.
      EXPECT_PRED2(contains, log.text(),
                   "after step 8 the ranks have different");
      EXPECT_PRED2(
          contains, log.text(),
          fmt::format("step 8 was repeated: rank {} had been wrong", rank));
    }
  }
}

TEST(StateGuard, NamesTheRankOfThree) {
  const RunReport expected = quiet(4);
  LogCapture log;
  const RunReport report = run_with({.rank = 2}, 4, compared_run());
  EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
  EXPECT_PRED2(contains, log.text(),
               "after step 8 parameters or optimizer state of rank 2 differ");
}

TEST(StateGuard, GoesBackToACheckpoint) {
  const RunReport expected = quiet(2);
  const TemporaryFolder folder;
  ImageTraining options = compared_run();
  options.out_dir(folder.path("run"));
  options.checkpoint().every(6);
  const RunReport report = run_with({.step = 14}, 2, options);
  EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
  // Resumed from step 12, not from the beginning.
  EXPECT_PRED2(contains, report.resumed_from, "step-00000012");
}

// Every saved state was compared, even between two regular comparisons.
TEST(StateGuard, SavesNothingThatDiffers) {
  const TemporaryFolder folder;
  ImageTraining options = compared_run();
  options.out_dir(folder.path("run"));
  options.checkpoint().every(3);
  const RunReport report = run_with({.step = 9}, 2, options);
  EXPECT_EQ(report.recoveries, 1);
  EXPECT_PRED2(contains, report.resumed_from, "step-00000006");
}

TEST(StateGuard, EndsARankThatIsWrongAgain) {
  const std::string message = error_of<Error>(
      [] { run_with({.rank = 2, .times = 2}, 4, compared_run()); });
  EXPECT_PRED2(contains, message, in_brackets(ErrorCode::kParametersDiffer));
  EXPECT_PRED2(contains, message, "rank 2");
}

// A gradient that is wrong before it is summed would reach all ranks alike.
TEST(StateGuard, RepairsWhatARankComputesWrong) {
  ImageTraining options = compared_run();
  options.verify().gradients_every(1);
  for (const std::string backend : {"tcp", "shm"}) {
    const RunReport expected =
        run_with({.times = 0}, 2, compared_run(), backend);
    // Without the verification the run goes wrong, and nobody sees it.
    const Flip of_first{.rank = 0, .what = What::kOwnGradient};
    EXPECT_NE(run_with(of_first, 2, compared_run(), backend).parameter_sha256,
              expected.parameter_sha256);
    for (const int rank : {0, 1}) {
      LogCapture log;
      const RunReport report = run_with(
          {.rank = rank, .what = What::kOwnGradient}, 2, options, backend);
      EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
      EXPECT_EQ(report.losses, expected.losses);
      EXPECT_EQ(report.recoveries, 0);
      EXPECT_PRED2(
          contains, log.text(),
          fmt::format("rank {} computed wrong gradients of shard {} at step 7",
                      rank, 2 * rank));
    }
  }
}

TEST(StateGuard, VerifiesTheStepsThatItIsToldTo) {
  ImageTraining options = compared_run();
  options.verify().gradients_every(7);
  const RunReport expected = run_with({.times = 0}, 2, compared_run());
  EXPECT_EQ(run_with({.what = What::kOwnGradient}, 2, options).parameter_sha256,
            expected.parameter_sha256);
  options.verify().gradients_every(6);
  EXPECT_NE(run_with({.what = What::kOwnGradient}, 2, options).parameter_sha256,
            expected.parameter_sha256);
}

TEST(StateGuard, EndsARankThatComputesWrongAgain) {
  ImageTraining options = compared_run();
  options.verify().gradients_every(1);
  EXPECT_PRED2(contains, error_of<Error>([&] {
                 run_with({.what = What::kOwnGradient, .times = 2}, 2, options);
               }),
               "rank 1 computed wrong gradients of shard 2 at step 8");
}

TEST(StateGuard, CanBeSwitchedOff) {
  ImageTraining options = compared_run();
  options.verify().every(0);
  const RunReport report = run_with({}, 2, options);
  EXPECT_EQ(report.recoveries, 0);
}

}  // namespace
}  // namespace lockstep::train
