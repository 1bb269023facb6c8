// Runs in which a bit of one rank changes in silence.
#include "lockstep/train/run/state_guard.h"

#include <atomic>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/parallel/exchange/comm_hooks.h"
#include "lockstep/train/run_optimizer.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

enum class What {
  kParameter,
  kBias,  ///< a parameter on which all of the next gradients depend
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
  int64_t again = -1;  ///< step of later flips, if it is another one
};

// Flips a low bit, so that the loss changes only slightly or not at all.
void flip_a_bit(const torch::Tensor& tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[tensor.nbytes() / 2] ^= 4U;
}

// Flips the highest bit of a float's mantissa.
void flip_a_high_bit(const torch::Tensor& tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[tensor.numel() / 2 * tensor.element_size() + 2] ^= 0x40U;
}

class Flipper : public Callback {
 public:
  Flipper(const Flip& flip, int rank, std::atomic<int>& left,
          std::function<torch::Tensor()> target)
      : flip_(flip), rank_(rank), left_(left), target_(std::move(target)) {}
  void after_step(const RunState& at, const Metrics&) override {
    const bool is_first = flip_.again < 0 || left_ == flip_.times;
    const int64_t due = is_first ? flip_.step : flip_.again;
    if (at.step != due || rank_ != flip_.rank || left_-- <= 0) return;
    flip_.what == What::kBias ? flip_a_high_bit(target_())
                              : flip_a_bit(target_());
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

/// Has this rank update with a sum over all ranks of which a bit is wrong, in
/// the step that is due.
class WrongSum : public Callback {
 public:
  WrongSum(const Flip& flip, int rank, std::atomic<int>& left)
      : flip_(flip), rank_(rank), left_(left) {}
  void before_step(const RunState& at) override {
    is_wrong_ = at.step + 1 == flip_.step && rank_ == flip_.rank && left_-- > 0;
  }
  /// A CommHook. May be called from any thread.
  void sum(const ProcessGroup& group, GradBucket& bucket) {
    allreduce_hook(group, bucket);
    if (is_wrong_.exchange(false)) flip_a_bit(bucket.gradients.front());
  }

 private:
  Flip flip_;
  int rank_;
  std::atomic<int>& left_;
  std::atomic<bool> is_wrong_{false};
};

/// Trains images; its callback has the model's and the optimizer's memory.
class FlippingTask : public tasks::ImageTask {
 public:
  FlippingTask(const tasks::ImageOptions& options, const Flip& flip, int rank,
               std::atomic<int>& left)
      : ImageTask(options), flip_(flip), rank_(rank), left_(left) {}

  ModuleSource make_model(const torch::Device& device) override {
    auto module = ImageTask::make_model(device);
    read_ = module.read;
    return module;
  }
  std::unique_ptr<RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override {
    auto optimizer = ImageTask::make_optimizer(make_state);
    optimizer_ = optimizer.get();
    return optimizer;
  }
  void set_engine(Engine* engine) override {
    if (engine == nullptr || !sum_) return;
    engine->register_comm_hook(
        [sum = sum_](const ProcessGroup& group, GradBucket& bucket) {
          sum->sum(group, bucket);
        });
  }
  LossAndMetrics loss(const c10::IValue& output,
                      const c10::IValue& target) const override {
    if (processor_) processor_->compute(output.toTensor());
    return ImageTask::loss(output, target);
  }
  std::vector<std::shared_ptr<Callback>> callbacks() override {
    if (flip_.what == What::kGradient) {
      sum_ = std::make_shared<WrongSum>(flip_, rank_, left_);
      return {sum_};
    }
    if (flip_.what == What::kOwnGradient) {
      processor_ = std::make_shared<WrongProcessor>(flip_, rank_, left_);
      return {processor_};
    }
    return {std::make_shared<Flipper>(flip_, rank_, left_, [this] {
      switch (flip_.what) {
        case What::kParameter:
          return read_().parameters.front().second;
        case What::kBias:
          return read_().parameters.back().second;
        default:
          return optimizer_->state_dict().begin()->second;
      }
    })};
  }

 private:
  Flip flip_;
  int rank_;
  std::atomic<int>& left_;
  std::function<ModuleHandle()> read_;
  RunOptimizer* optimizer_ = nullptr;
  std::shared_ptr<WrongProcessor> processor_;
  std::shared_ptr<WrongSum> sum_;
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
  // Flips are counted by the computations of a step.
  options.verify().steps(Verify::kFirst);
  return options;
}

/// The same with more parameters, compared after steps 5, 9, 10, 15, 18, 20 and
/// 24, as an epoch has 5 steps. Each step compares only a 64th of them
/// (CommonState), and that with the last bias comes after 24 steps.
ImageTraining wide_run() {
  ImageTraining options = compared_run();
  options.model.width = 512;
  options.verify().every(9);
  return options;
}

RunReport quiet(int ranks, const ImageTraining& options = compared_run()) {
  return run_with({.times = 0}, ranks, options);
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

TEST(StateGuard, NamesTheRankIfTheOthersAreStillRight) {
  const RunReport expected = quiet(2, wide_run());
  for (const int rank : {0, 1}) {
    LogCapture log;
    const RunReport report =
        run_with({.rank = rank, .step = 9, .what = What::kBias}, 2, wide_run());
    EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
    EXPECT_EQ(report.recoveries, 1);
    EXPECT_PRED2(
        contains, log.text(),
        fmt::format("step 9 was repeated: rank {} had been wrong", rank));
  }
}

// The gradients of steps 7 to 9 carry the change to the other rank.
TEST(StateGuard, BlamesNobodyForAChangeThatHasSpread) {
  const RunReport expected = quiet(2, wide_run());
  for (const int rank : {0, 1}) {
    LogCapture log;
    const RunReport report =
        run_with({.rank = rank, .step = 6, .what = What::kBias}, 2, wide_run());
    EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
    EXPECT_EQ(report.losses, expected.losses);
    EXPECT_EQ(report.recoveries, 1);
    EXPECT_PRED2(
        contains, log.text(),
        "step 9 was repeated: all ranks had been wrong, so it can't be "
        "known in which of them a bit changed");
  }
}

TEST(StateGuard, EndsNoRankThatOthersMadeWrong) {
  const RunReport expected = quiet(2, wide_run());
  const RunReport report =
      run_with({.step = 6, .what = What::kBias, .times = 2}, 2, wide_run());
  EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
  EXPECT_EQ(report.recoveries, 2);
}

// Compared each step, rank 0 is still right when rank 1 is wrong again.
TEST(StateGuard, WatchesEachStepAfterAChangeThatHasSpread) {
  const RunReport expected = quiet(2, wide_run());
  LogCapture log;
  const RunReport report = run_with(
      {.step = 6, .what = What::kBias, .times = 2, .again = 13}, 2, wide_run());
  EXPECT_EQ(report.parameter_sha256, expected.parameter_sha256);
  EXPECT_EQ(report.recoveries, 2);
  EXPECT_PRED2(contains, log.text(),
               "step 13 was repeated: rank 1 had been wrong");
}

TEST(StateGuard, EndsARunThatMakesNoProgress) {
  const std::string message = error_of<Error>([] {
    run_with({.step = 6, .what = What::kBias, .times = 100}, 2, wide_run());
  });
  EXPECT_PRED2(contains, message, in_brackets(ErrorCode::kParametersDiffer));
  EXPECT_PRED2(contains, message,
               "6 times before step 10 was done, and it can't be known which "
               "rank is wrong");
}

/// Compares digests, by rank, after step 4. Returns the messages of the ranks.
std::vector<std::string> compare(const std::vector<std::string>& digests,
                                 const std::vector<GuardHistory*>& histories) {
  std::vector<std::string> messages(digests.size());
  report_of_ranks(static_cast<int>(digests.size()), "tcp",
                  [&](const ProcessGroup& world) {
                    const auto rank = static_cast<size_t>(world.rank());
                    StateGuard guard(world, 4, *histories[rank]);
                    EXPECT_TRUE(guard.is_due(4));
                    try {
                      guard.compare(4, digests[rank]);
                    } catch (const TrainError& error) {
                      messages[rank] = error.what();
                    }
                    return RunReport();
                  });
  return messages;
}

// A process may get another rank when nodes come or go.
TEST(StateGuard, RemembersProcessesNotRanks) {
  GuardHistory good, bad;
  compare({"right", "wrong"}, {&good, &bad});
  EXPECT_EQ(good.times_wrong + bad.times_wrong, 0);
  compare({"right", "right"}, {&bad, &good});
  EXPECT_EQ(good.times_wrong, 0);
  EXPECT_EQ(bad.times_wrong, 1);
}

TEST(StateGuard, BlamesNobodyIfAProcessWasReplaced) {
  GuardHistory survivor, lost, replacement;
  compare({"wrong", "also wrong"}, {&survivor, &lost});
  LogCapture log;
  compare({"right", "right"}, {&survivor, &replacement});
  EXPECT_EQ(survivor.times_wrong, 0);
  EXPECT_PRED2(contains, log.text(),
               "it can't be known where a bit changed, because another rank "
               "was replaced since then");
}

TEST(StateGuard, ComparesStepsThatOnlyOneProcessRemembers) {
  GuardHistory survivor, replacement;
  survivor.different = {.step = 3, .digest = "wrong"};
  report_of_ranks(2, "tcp", [&](const ProcessGroup& world) {
    GuardHistory& own = world.rank() == 0 ? survivor : replacement;
    StateGuard guard(world, 4, own);
    EXPECT_TRUE(guard.is_due(3));
    EXPECT_FALSE(guard.is_due(2));
    return RunReport();
  });
}

// The digest of a step that was equal shows at once which rank has changed.
TEST(StateGuard, NamesTheRankThatChangedSinceItWasEqual) {
  GuardHistory good, bad;
  compare({"right", "right"}, {&good, &bad});
  const auto messages = compare({"right", "wrong"}, {&good, &bad});
  EXPECT_PRED2(contains, messages[0],
               "after step 4 parameters or optimizer state of rank 1 differ");
  EXPECT_EQ(good.times_wrong, 0);
  EXPECT_EQ(bad.times_wrong, 1);
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
    const Flip first_flip{.rank = 0, .what = What::kOwnGradient};
    EXPECT_NE(run_with(first_flip, 2, compared_run(), backend).parameter_sha256,
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
  ImageTraining options = wide_run();
  options.verify().every(0);
  const RunReport report = run_with({.what = What::kBias}, 2, options);
  EXPECT_EQ(report.recoveries, 0);
}

// Each step still compares a part, but then nothing goes back.
TEST(StateGuard, LeavesARunWithAnErrorIfSwitchedOff) {
  ImageTraining options = compared_run();
  options.verify().every(0);
  EXPECT_PRED2(contains, error_of<Error>([&] { run_with({}, 2, options); }),
               in_brackets(ErrorCode::kParametersDiffer));
}

}  // namespace
}  // namespace lockstep::training
