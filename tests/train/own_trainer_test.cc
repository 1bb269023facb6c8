// Modules, data, losses and optimizers that Lockstep does not know, trained by
// every strategy to the same bits.

#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/train/run/run_training.h"
#include "lockstep/train/trainer.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::training {
namespace {

using torch::Tensor;

struct CurveImpl : torch::nn::Cloneable<CurveImpl> {
  CurveImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(1, 16));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
    out = register_module("out", torch::nn::Linear(16, 1));
  }
  Tensor forward(const Tensor& x) {
    return out(dropout(torch::tanh(hidden(x))));
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Curve);

/// Points on a sine curve, as an example of a user's own dataset.
struct Points {
  explicit Points(int64_t count) : count_(count) {}
  size_t size() const { return static_cast<size_t>(count_); }
  std::pair<Tensor, Tensor> get(size_t index) const {
    const Tensor x = torch::full(
        {1}, static_cast<double>(index) / static_cast<double>(count_));
    return {x, torch::sin(6 * x)};
  }

 private:
  int64_t count_;
};

/// The same, as a dataset of torch::data.
struct TorchPoints : torch::data::Dataset<TorchPoints> {
  explicit TorchPoints(int64_t count) : points(count) {}
  std::optional<size_t> size() const override { return points.size(); }
  torch::data::Example<> get(size_t index) override {
    auto [x, y] = points.get(index);
    return {x, y};
  }
  Points points;
};

Tensor squares(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

Trainer<CurveImpl> curve_trainer() {
  Trainer trainer([] { return Curve(); });
  trainer.data(std::make_shared<Points>(50))
      .test_data(std::make_shared<Points>(23))
      .loss([](const Tensor& output, const Tensor& target) {
        return LossAndMetrics(
            squares(output, target),
            {{"error", torch::l1_loss(output.detach(), target)}});
      })
      .optimizer([](CurveImpl& net) {
        // Two groups: the biases are not decayed.
        std::vector<torch::optim::OptimizerParamGroup> groups;
        groups.emplace_back(
            std::vector<Tensor>{net.hidden->weight, net.out->weight},
            std::make_unique<torch::optim::AdamWOptions>(
                torch::optim::AdamWOptions(0.02).weight_decay(0.1)));
        groups.emplace_back(
            std::vector<Tensor>{net.hidden->bias, net.out->bias},
            std::make_unique<torch::optim::AdamWOptions>(
                torch::optim::AdamWOptions(0.01).weight_decay(0)));
        return std::make_unique<torch::optim::AdamW>(
            groups, torch::optim::AdamWOptions(0.02));
      })
      .schedule_per_epoch([](torch::optim::Optimizer& optimizer) {
        return std::make_shared<torch::optim::StepLR>(optimizer, 2, 0.5);
      });
  return trainer;
}

TrainOptions small() {
  // The last batch of 50 samples has 2.
  TrainOptions options = short_run(/*batch_size=*/12, /*shards=*/4);
  options.epochs(5);
  options.seed(5);
  return options;
}

using Make = std::function<std::unique_ptr<TrainerBase>()>;

/// Rank 0's report of a run with ranks as threads, each with its own trainer.
RunReport on_ranks(const Make& make, TrainOptions options, int ranks,
                   const std::string& backend) {
  options.strategy(Strategy::kDistributed);
  options.devices().resize(static_cast<size_t>(ranks), options.devices()[0]);
  return report_of_ranks(ranks, backend, [&](const ProcessGroup& world) {
    return make()->fit(options, world);
  });
}

RunReport on_slices(const Make& make, TrainOptions options, int slices) {
  options.strategy(Strategy::kDataParallel);
  options.devices(cpu_slices(slices));
  return make()->fit(options);
}

/// Trains on one device, on two and on ranks, to the same bits. Returns what
/// one device got.
RunReport expect_one_result(const Make& make,
                            const TrainOptions& options = small()) {
  RunReport single = make()->fit(options);
  EXPECT_EQ(single.parameter_sha256.size(), 64u);
  if (allowed_cores().size() >= 2) {
    expect_same(on_slices(make, options, 2), single, "dp 2");
  }
  for (const int ranks : {2, 4}) {
    for (const char* backend : {"shm", "tcp"}) {
      expect_same(on_ranks(make, options, ranks, backend), single,
                  fmt::format("ddp {} over {}", ranks, backend));
    }
  }
  return single;
}

template <class M>
Make copies_of(const Trainer<M>& trainer) {
  return [trainer] { return std::make_unique<Trainer<M>>(trainer); };
}

TEST(OwnTrainer, GivesTheSameBitsInEveryStrategy) {
  const RunReport report = expect_one_result(copies_of(curve_trainer()));
  EXPECT_EQ(report.steps, 25);
  EXPECT_EQ(report.test.samples, 23);
  EXPECT_EQ(report.test.metrics.count("error"), 1u);
  EXPECT_LT(report.losses.back(), report.losses.front());
  // The learning rates of a plain loop that calls the scheduler after each
  // epoch.
  torch::optim::SGD plain({torch::zeros({1}, torch::requires_grad())}, 0.02);
  torch::optim::StepLR scheduler(plain, 2, 0.5);
  for (const auto& epoch : report.epochs) {
    EXPECT_EQ(epoch.lr, plain.param_groups()[0].options().get_lr());
    scheduler.step();
  }
  EXPECT_LT(report.epochs.back().lr, 0.02);
}

TEST(OwnTrainer, TrainsWithAnyOptimizerOfLibTorch) {
  const auto with = [](auto make) {
    auto trainer = curve_trainer();
    trainer.optimizer(make);
    return copies_of(trainer);
  };
  expect_one_result(with([](CurveImpl& net) {
    return std::make_unique<torch::optim::SGD>(
        net.parameters(),
        torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.5));
  }));
  expect_one_result(with([](CurveImpl& net) {
    return std::make_unique<torch::optim::RMSprop>(
        net.parameters(),
        torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  }));
  expect_one_result(with([](CurveImpl& net) {
    return std::make_unique<torch::optim::Adagrad>(
        net.parameters(), torch::optim::AdagradOptions(0.05));
  }));
}

TEST(OwnTrainer, TrainsWithAScheduleOfItsOwn) {
  auto trainer = curve_trainer();
  trainer.optimizer([](CurveImpl& net) {
    return std::make_unique<torch::optim::SGD>(
        net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  });
  trainer.schedule_per_epoch(nullptr);
  trainer.schedule([](const Position& at) { return at.epoch < 2 ? 1.0 : 0.1; });
  const RunReport report = expect_one_result(copies_of(trainer));
  EXPECT_DOUBLE_EQ(report.epochs.back().lr, 0.005);
}

TEST(OwnTrainer, TakesDatasetsOfTorchData) {
  const auto with = [](auto dataset) {
    auto trainer = curve_trainer();
    trainer.data(dataset);
    return copies_of(trainer);
  };
  const RunReport plain = curve_trainer().fit(small());
  expect_same(expect_one_result(with(std::make_shared<TorchPoints>(50))), plain,
              "a torch::data dataset");
  using Stacked =
      decltype(TorchPoints(50).map(torch::data::transforms::Stack<>()));
  const auto stacked = std::make_shared<Stacked>(
      TorchPoints(50).map(torch::data::transforms::Stack<>()));
  expect_same(expect_one_result(with(stacked)), plain, "one with a transform");
}

/// Sequences of different lengths: the sum of each is to be told.
struct Ragged {
  size_t size() const { return 30; }
  std::pair<Tensor, Tensor> get(size_t index) const {
    const auto length = static_cast<int64_t>(1 + index % 5);
    const Tensor values = torch::sin(torch::arange(length, torch::kFloat32) +
                                     static_cast<double>(index));
    return {values, values.sum().reshape({1})};
  }
};

/// Two inputs, values and mask, both (N, T).
struct SumImpl : torch::nn::Module {
  SumImpl() {
    weight = register_parameter("weight", torch::rand({1}));
    bias = register_parameter("bias", torch::zeros({1}));
  }
  Tensor forward(const Tensor& values, const Tensor& mask) {
    return (values * mask * weight).sum(1, true) + bias;
  }
  Tensor weight, bias;
};

TEST(OwnTrainer, CollatesSamplesOfDifferentLength) {
  using Samples = std::vector<std::pair<Tensor, Tensor>>;
  Trainer trainer([] { return std::make_shared<SumImpl>(); });
  trainer
      .data(std::make_shared<Ragged>(),
            [](Samples samples) {
              int64_t longest = 0;
              for (const auto& sample : samples) {
                longest = std::max(longest, sample.first.numel());
              }
              std::vector<Tensor> values, masks, sums;
              for (const auto& [value, sum] : samples) {
                const int64_t length = value.numel();
                const auto padding = std::vector<int64_t>{0, longest - length};
                values.push_back(torch::constant_pad_nd(value, padding));
                masks.push_back(
                    torch::constant_pad_nd(torch::ones({length}), padding));
                sums.push_back(sum);
              }
              return std::make_pair(
                  std::make_tuple(torch::stack(values), torch::stack(masks)),
                  torch::stack(sums));
            })
      .loss(squares)
      .optimizer([](SumImpl& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), 0.1);
      });
  const RunReport report = expect_one_result(copies_of(trainer));
  EXPECT_LT(report.losses.back(), report.losses.front());
}

TEST(OwnTrainer, RunsAStepFunction) {
  auto trainer = curve_trainer();
  trainer.step([](CurveImpl& net, const data::Batch& batch) {
    // Two forwards, and no use of forward()'s own loss.
    const Tensor x = batch.data;
    const Tensor twice = (net.forward(x) + net.forward(x)) / 2;
    return LossAndMetrics(squares(twice, batch.target),
                          {{"largest", twice.detach().abs().max()}});
  });
  const RunReport report = expect_one_result(copies_of(trainer));
  EXPECT_EQ(report.test.metrics.count("largest"), 1u);
  EXPECT_LT(report.losses.back(), report.losses.front());
}

TEST(OwnTrainer, GoesOnToTheBitsOfARunWithoutAStop) {
  for (const bool is_whole : {false, true}) {
    auto trainer = curve_trainer();
    if (is_whole) {
      trainer.optimizer([](CurveImpl& net) {
        return std::make_unique<torch::optim::RMSprop>(
            net.parameters(), torch::optim::RMSpropOptions(0.01).momentum(0.9));
      });
    }
    const Make make = copies_of(trainer);
    const RunReport whole = make()->fit(small());
    const TemporaryFolder folder;
    TrainOptions options = small();
    options.out_dir(folder.path("run"));
    int polled = 0;
    const auto stopped_trainer = make();
    const RunReport stopped =
        run_training(*task_of(*stopped_trainer), options,
                     {.stop = [&] { return ++polled == 13 ? 2 : 0; }});
    EXPECT_TRUE(stopped.interrupted);
    EXPECT_EQ(stopped.steps, 13);
    options.checkpoint().resume("auto");
    const RunReport resumed = on_ranks(make, options, 2, "shm");
    EXPECT_EQ(resumed.first_step, 13);
    EXPECT_EQ(resumed.parameter_sha256, whole.parameter_sha256);
    EXPECT_EQ(resumed.test.metrics, whole.test.metrics);
    EXPECT_EQ(resumed.epochs.back().train, whole.epochs.back().train);
    EXPECT_EQ(resumed.epochs.back().lr, whole.epochs.back().lr);
  }
}

TEST(OwnTrainer, GoesOnWithMoreDataIfItIsToldTo) {
  const TemporaryFolder folder;
  TrainOptions options = small();
  options.out_dir(folder.path("run"));
  options.max_steps(8);  // 5 batches in an epoch
  curve_trainer().fit(options);
  options.max_steps(0);
  options.checkpoint().resume("auto");
  auto trainer = curve_trainer();
  trainer.data(std::make_shared<Points>(80));
  expect_problem(
      error_of<CheckpointError>([&] { trainer.fit(options); }),
      ErrorCode::kResumeConflict,
      {"50 samples in the checkpoint", "80 samples now", "--allow-changes"});
  options.checkpoint().allow_changes(true);
  const LogCapture log;
  const RunReport report = trainer.fit(options);
  EXPECT_EQ(report.first_step, 8);
  EXPECT_EQ(report.steps, 5 * 7);
  EXPECT_PRED2(contains, log.text(), "batch 1 of epoch 1");
}

/// Ends the run when the test loss did not get better for three evaluations.
class EarlyStop : public Callback {
 public:
  void after_evaluation(const RunState& at, const TestReport& test) override {
    steps.push_back(at.step);
    const double loss = test.metrics.at("loss");
    worse_ = loss < best_ ? 0 : worse_ + 1;
    best_ = std::min(best_, loss);
  }
  bool wants_to_stop() const override { return worse_ >= 3; }
  OptimizerState state() const override {
    return {{"state", torch::tensor({best_, static_cast<double>(worse_)},
                                    torch::kFloat64)}};
  }
  void load_state(const OptimizerState& state) override {
    const Tensor& values = state.at("state");
    best_ = values[0].item<double>();
    worse_ = values[1].item<int>();
  }

  std::vector<int64_t> steps;  ///< of the evaluations

 private:
  double best_ = 1e9;
  int worse_ = 0;
};

// The rate is 0 from step 5 on, so nothing gets better then.
Trainer<CurveImpl> stopping_trainer(std::shared_ptr<EarlyStop> early_stop) {
  auto trainer = curve_trainer();
  trainer.schedule_per_epoch(nullptr);
  trainer.schedule([](const Position& at) { return at.step < 5 ? 1.0 : 0.0; });
  trainer.callback(std::move(early_stop));
  return trainer;
}

TEST(OwnTrainer, EndsWhenACallbackWantsIt) {
  TrainOptions options = small();
  options.evaluation().every(2);
  const auto early_stop = std::make_shared<EarlyStop>();
  const RunReport report = stopping_trainer(early_stop).fit(options);
  // After 6 steps the loss is at its best, after 8, 10 and 12 it is not better;
  // all ranks know that after step 13. At last comes the evaluation at the end.
  EXPECT_EQ(report.steps, 13);
  EXPECT_FALSE(report.interrupted);
  EXPECT_EQ(early_stop->steps, (std::vector<int64_t>{2, 4, 6, 8, 10, 12, 13}));
  ASSERT_EQ(report.evaluations.size(), 6u);
  EXPECT_EQ(report.evaluations.back().step, 12);
  EXPECT_EQ(report.evaluations.back().test.metrics, report.test.metrics);
  // The same in other strategies, and evaluations change no bit.
  const Make make = [] {
    return std::make_unique<Trainer<CurveImpl>>(
        stopping_trainer(std::make_shared<EarlyStop>()));
  };
  expect_same(on_ranks(make, options, 2, "shm"), report, "ddp");
  options.evaluation().every(0);
  options.max_steps(13);
  expect_same(make()->fit(options), report, "without evaluations");
}

/// Ends the run after step 7, and remembers nothing.
struct GoodEnough : Callback {
  void after_step(const RunState& at, const Metrics&) override {
    is_enough = at.step >= 6;
  }
  bool wants_to_stop() const override { return is_enough; }
  bool is_enough = false;
};

TEST(OwnTrainer, StaysEndedWhenItIsStartedAgain) {
  const TemporaryFolder folder;
  TrainOptions options = small();
  options.out_dir(folder.path("run"));
  options.checkpoint().resume("auto");
  const Make make = [] {
    auto trainer = std::make_unique<Trainer<CurveImpl>>(curve_trainer());
    trainer->callback(std::make_shared<GoodEnough>());
    return trainer;
  };
  const RunReport ended = make()->fit(options);
  EXPECT_EQ(ended.steps, 7);
  const RunReport again = make()->fit(options);
  EXPECT_EQ(again.steps, 7);
  EXPECT_EQ(again.parameter_sha256, ended.parameter_sha256);
  EXPECT_EQ(again.test.metrics, ended.test.metrics);
  EXPECT_FALSE(again.interrupted);
  EXPECT_EQ(on_ranks(make, options, 2, "tcp").parameter_sha256,
            ended.parameter_sha256);
  options.checkpoint().allow_changes(true);
  EXPECT_EQ(make()->fit(options).steps, 9);
}

// The signal comes in the step that is the last one anyway.
TEST(OwnTrainer, StaysEndedWhenItIsStoppedInItsLastStep) {
  const TemporaryFolder folder;
  TrainOptions options = small();
  options.out_dir(folder.path("run"));
  options.checkpoint().resume("auto");
  for (const bool is_stopped : {true, false}) {
    const auto good_enough = std::make_shared<GoodEnough>();
    Trainer<CurveImpl> trainer = curve_trainer();
    trainer.callback(good_enough);
    const RunReport report =
        run_training(*task_of(trainer), options, {.stop = [&] {
          return is_stopped && good_enough->is_enough ? SIGTERM : 0;
        }});
    EXPECT_EQ(report.steps, 7);
    EXPECT_EQ(report.interrupted, is_stopped);  // in its evaluation
  }
}

/// Adds up what a run tells of its steps.
struct Accounts : Callback {
  void before_batch(const RunState&) override { ++batches; }
  void after_step(const RunState& at, const Metrics&) override {
    ++steps;
    samples += at.samples;
    seconds += at.step_s;
  }
  int64_t batches = 0, steps = 0, samples = 0;
  double seconds = 0;
};

/// Scales its output by a member.
struct GainImpl : torch::nn::Cloneable<GainImpl> {
  GainImpl() { reset(); }
  void reset() override {
    bias = register_parameter("bias", torch::zeros({1}));
  }
  Tensor forward(const Tensor& x) { return x * gain + bias; }
  double gain = 1;
  Tensor bias;
};

/// Has members of its own, and a submodule with one.
struct AnnealedImpl : torch::nn::Cloneable<AnnealedImpl> {
  AnnealedImpl() { reset(); }
  void reset() override {
    curve = register_module("curve", Curve());
    last = register_module("last", std::make_shared<GainImpl>());
  }
  Tensor forward(const Tensor& x) {
    return last->forward(curve(x)) / temperature;
  }
  double temperature = 1;
  Curve curve{nullptr};
  std::shared_ptr<GainImpl> last;
};

/// Changes members between the steps.
class Annealing : public Callback {
 public:
  explicit Annealing(Trainer<AnnealedImpl>& trainer) : trainer_(trainer) {}
  void before_step(const RunState& at) override {
    AnnealedImpl& net = *trainer_.module();
    if (at.step % 3 == 0) {
      net.temperature = 1 + 0.1 * static_cast<double>(at.step);
    }
    if (at.step % 5 != 0) return;
    net.last->gain = 1 + 0.2 * static_cast<double>(at.step);
    trainer_.rebuild();
  }

 private:
  Trainer<AnnealedImpl>& trainer_;
};

std::unique_ptr<TrainerBase> annealed_trainer(bool changes) {
  auto trainer = std::make_unique<Trainer<AnnealedImpl>>(
      [] { return std::make_shared<AnnealedImpl>(); });
  trainer->data(std::make_shared<Points>(50))
      .loss(squares)
      .optimizer([](AnnealedImpl& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), 0.05);
      });
  if (changes) trainer->callback(std::make_shared<Annealing>(*trainer));
  return trainer;
}

TEST(OwnTrainer, FollowsMembersThatACallbackChanges) {
  const RunReport changed =
      expect_one_result([] { return annealed_trainer(true); });
  EXPECT_NE(annealed_trainer(false)->fit(small()).parameter_sha256,
            changed.parameter_sha256);
}

/// Keeps the weights small.
class Clamping : public Callback {
 public:
  explicit Clamping(Trainer<CurveImpl>& trainer) : trainer_(trainer) {}
  void after_step(const RunState&, const Metrics&) override {
    trainer_.unshare_parameters();
    const torch::NoGradGuard no_grad;
    for (Tensor& weight : trainer_.module()->parameters()) {
      weight.clamp_(-0.1, 0.1);
    }
  }

 private:
  Trainer<CurveImpl>& trainer_;
};

TEST(OwnTrainer, LetsACallbackChangeTheParameters) {
  const Make make = [] {
    auto trainer = std::make_unique<Trainer<CurveImpl>>(curve_trainer());
    trainer->callback(std::make_shared<Clamping>(*trainer));
    return trainer;
  };
  const RunReport clamped = expect_one_result(make);
  EXPECT_NE(curve_trainer().fit(small()).parameter_sha256,
            clamped.parameter_sha256);
  const auto trainer = make();
  trainer->fit(small());
  for (const Tensor& weight :
       dynamic_cast<Trainer<CurveImpl>&>(*trainer).module()->parameters()) {
    EXPECT_LE(weight.abs().max().item<float>(), 0.1F);
  }
  EXPECT_EQ(error_code_of([&] { trainer->unshare_parameters(); }),
            ErrorCode::kMisuse);
}

/// Points in a buffer that each call uses, as a file's position would be. It is
/// filled for one epoch.
struct BufferedPoints : Points {
  using Points::Points;
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  std::pair<Tensor, Tensor> get(size_t index) {
    EXPECT_FALSE(is_in_use_.exchange(true)) << "two threads use the dataset";
    buffer_ = Points::get(index);
    buffer_.first = buffer_.first + 0.01 * static_cast<double>(epoch_);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    is_in_use_ = false;
    return buffer_;
  }
  std::string fingerprint() {
    std::string text;
    for (size_t i = 0; i < size(); ++i) {
      text += c10::str(get(i).second.item<float>(), ' ');
    }
    return text;
  }

 private:
  int64_t epoch_ = 0;
  std::pair<Tensor, Tensor> buffer_;
  std::atomic<bool> is_in_use_ = false;
};

TEST(OwnTrainer, ReadsADatasetByOneThreadAtATime) {
  const TemporaryFolder folder;
  TrainOptions options = small();
  options.evaluation().every(1);
  std::set<std::string> digests;
  for (int run = 0; run < 3; ++run) {
    options.out_dir(folder.path(std::to_string(run)));
    const auto points = std::make_shared<BufferedPoints>(50);
    auto trainer = curve_trainer();
    trainer.data(points).test_data(points);
    digests.insert(trainer.fit(options).parameter_sha256);
  }
  EXPECT_EQ(digests.size(), 1u);
}

/// Makes all outputs 0 after the last step.
class Cooling : public Callback {
 public:
  explicit Cooling(Trainer<AnnealedImpl>& trainer) : trainer_(trainer) {}
  void after_step(const RunState&, const Metrics&) override {
    trainer_.module()->temperature = 1e30;
  }

 private:
  Trainer<AnnealedImpl>& trainer_;
};

TEST(OwnTrainer, EvaluatesWithMembersThatACallbackChanged) {
  const auto losses_after = [](int64_t epochs, bool cools) {
    TrainOptions options = small();
    options.epochs(epochs);
    Trainer<AnnealedImpl> trainer(
        [] { return std::make_shared<AnnealedImpl>(); });
    trainer.data(std::make_shared<Points>(50))
        .test_data(std::make_shared<Points>(23))
        .loss(squares)
        .optimizer([](AnnealedImpl& net) {
          return std::make_unique<torch::optim::SGD>(net.parameters(), 0.05);
        });
    if (cools) trainer.callback(std::make_shared<Cooling>(trainer));
    return trainer.fit(options).test.metrics;
  };
  EXPECT_EQ(losses_after(1, true), losses_after(2, true));
  EXPECT_NE(losses_after(1, false), losses_after(1, true));
}

TEST(OwnTrainer, TellsCallbacksTheSamplesAndTheTimeOfSteps) {
  const auto accounts = std::make_shared<Accounts>();
  const RunReport report = curve_trainer().callback(accounts).fit(small());
  EXPECT_EQ(accounts->steps, report.steps);
  EXPECT_GE(accounts->batches, report.steps);
  EXPECT_EQ(accounts->samples, 5 * 50);
  EXPECT_NEAR(accounts->seconds,
              report.step_time_s.mean * static_cast<double>(report.steps),
              1e-6);
}

TEST(OwnTrainer, KeepsTheStateOfCallbacks) {
  const TemporaryFolder folder;
  TrainOptions options = small();
  options.evaluation().every(2);
  options.out_dir(folder.path("run"));
  options.max_steps(10);
  stopping_trainer(std::make_shared<EarlyStop>()).fit(options);
  options.max_steps(0);
  options.checkpoint().resume("auto");
  const Make make = [] {
    return std::make_unique<Trainer<CurveImpl>>(
        stopping_trainer(std::make_shared<EarlyStop>()));
  };
  EXPECT_EQ(on_ranks(make, options, 2, "tcp").steps, 13);
}

/// An average of the weights over the steps, made in the first step.
class Averaging : public Callback {
 public:
  explicit Averaging(Trainer<CurveImpl>& trainer) : trainer_(trainer) {}
  void after_step(const RunState&, const Metrics&) override {
    const torch::NoGradGuard no_grad;
    for (const auto& item : trainer_.module()->named_parameters()) {
      Tensor& average = averages_[item.key()];
      if (!average.defined()) average = item.value().detach().clone();
      average.lerp_(item.value(), 0.1);
    }
  }
  OptimizerState state() const override { return averages_; }
  void load_state(const OptimizerState& state) override {
    for (const auto& [name, tensor] : state) averages_[name] = tensor.clone();
  }

 private:
  Trainer<CurveImpl>& trainer_;
  OptimizerState averages_;
};

TEST(OwnTrainer, KeepsTheStateThatACallbackMakesInItsFirstStep) {
  std::vector<OptimizerState> ends;
  for (const bool is_stopped : {false, true}) {
    const TemporaryFolder folder;
    TrainOptions options = small();
    options.out_dir(folder.path("run"));
    options.checkpoint().resume("auto");
    for (const int64_t steps : {is_stopped ? 5 : 10, 10}) {
      options.max_steps(steps);
      auto trainer = curve_trainer();
      const auto averaging = std::make_shared<Averaging>(trainer);
      trainer.callback(averaging).fit(options);
      if (steps == 10) ends.push_back(averaging->state());
    }
  }
  ASSERT_EQ(ends.size(), 3u);
  for (const auto& [name, average] : ends[0]) {
    EXPECT_TRUE(ends[1].at(name).equal(average)) << name;
    EXPECT_TRUE(ends[2].at(name).equal(average)) << name;
  }
}

// Four shards: 4 micro-batches of one device, or 2 on each of two.
TEST(OwnTrainer, AccumulatesToTheBitsOfMoreDevices) {
  const Make make = copies_of(curve_trainer());
  TrainOptions options = small();
  options.loading().drop_last(true);
  const RunReport expected = make()->fit(options);
  options.shards(0);
  options.accumulate(4);
  expect_same(make()->fit(options), expected, "4 on one");
  options.accumulate(2);
  expect_same(on_ranks(make, options, 2, "shm"), expected, "2 on each of two");
  if (allowed_cores().size() >= 2) {
    expect_same(on_slices(make, options, 2), expected, "dp, 2 on each of two");
  }
}

TEST(OwnTrainer, SaysWhatIsMissing) {
  Trainer trainer([] { return Curve(); });
  const auto missing = [&] {
    return error_of<InvalidArgument>([&] { trainer.fit(small()); });
  };
  expect_problem(missing(), ErrorCode::kMisuse, {"data()"});
  trainer.data(std::make_shared<Points>(50));
  expect_problem(missing(), ErrorCode::kMisuse, {"loss()"});
  trainer.loss(squares);
  expect_problem(missing(), ErrorCode::kMisuse, {"optimizer()"});
  trainer.optimizer([](CurveImpl& net) {
    return std::make_unique<torch::optim::LBFGS>(net.parameters());
  });
  expect_problem(missing(), ErrorCode::kBadOptimizer, {"LBFGS"});
}

TEST(OwnTrainer, NamesMetricsThatChange) {
  for (const int ranks : {1, 2}) {
    auto trainer = curve_trainer();
    // The limit is in the middle of a step.
    auto calls = std::make_shared<std::atomic<int>>(0);
    trainer.loss([calls](const Tensor& output, const Tensor& target) {
      LossAndMetrics values(squares(output, target));
      if (++*calls > 5) {
        values.metrics.emplace_back("late", values.loss.detach());
      }
      return values;
    });
    const Make make = copies_of(trainer);
    TrainOptions options = small();
    options.verify().steps(Verify::kNever);
    EXPECT_PRED2(contains, error_of<Error>([&] {
                   ranks == 1 ? make()->fit(options)
                              : on_ranks(make, options, ranks, "shm");
                 }),
                 "late");
  }
}

TEST(OwnTrainer, RefusesSamplesThatCanNotBeStacked) {
  auto trainer = curve_trainer();
  trainer.data(std::make_shared<Ragged>());
  expect_problem(error_of<InvalidArgument>([&] { trainer.fit(small()); }),
                 ErrorCode::kMisuse, {"stacked", "collate"});
}

torch::jit::Module script_curve() {
  torch::jit::Module net("Curve");
  net.register_parameter("hidden", torch::randn({1, 16}).requires_grad_(),
                         false);
  net.register_parameter("out", torch::randn({16, 1}).requires_grad_(), false);
  net.register_buffer("calls", torch::zeros({1}));
  net.define(R"(
    def forward(self, x, y):
        self.calls += 1
        return (torch.tanh(torch.matmul(x * y, self.hidden)) @ self.out,)
  )");
  return net;
}

std::unique_ptr<torch::optim::Adam> adam_of(const torch::jit::Module& net) {
  std::vector<Tensor> parameters;
  for (const auto& parameter : net.parameters()) {
    parameters.push_back(parameter);
  }
  return std::make_unique<torch::optim::Adam>(parameters, 0.02);
}

// A dataset with two inputs, for a model whose output is not a tensor.
struct Pairs {
  size_t size() const { return 50; }
  std::pair<std::tuple<Tensor, Tensor>, Tensor> get(size_t index) const {
    const auto [x, y] = Points(50).get(index);
    return {{x, torch::full({1}, 2.0)}, y};
  }
};

TEST(OwnTrainer, TrainsTorchScript) {
  Trainer trainer(script_curve);
  trainer.name("curve")
      .data(std::make_shared<Pairs>())
      .loss([](const std::tuple<Tensor>& output, const Tensor& target) {
        return squares(std::get<0>(output), target);
      })
      .optimizer([](torch::jit::Module& net) { return adam_of(net); });
  TrainOptions options = small();
  options.evaluation().enabled(false);
  const RunReport report = expect_one_result(copies_of(trainer), options);
  EXPECT_LT(report.losses.back(), report.losses.front());
}

TEST(OwnTrainer, TakesStepsWithTorchScript) {
  Trainer trainer(script_curve);
  trainer.name("curve")
      .data(std::make_shared<Pairs>())
      .step([](torch::jit::Module& net, const data::Batch& batch) {
        const auto output =
            net.forward(batch.arguments()).toTuple()->elements()[0];
        return squares(output.toTensor(), batch.target);
      })
      .optimizer([](torch::jit::Module& net) { return adam_of(net); });
  TrainOptions options = small();
  options.evaluation().enabled(false);
  expect_one_result(copies_of(trainer), options);
}

TEST(OwnTrainer, ComputesTheLossOnTheOutputDevice) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs two cores";
  constexpr int64_t kLarge = int64_t{1} << 22;
  auto trainer = curve_trainer();
  trainer.loss([](const Tensor& output, const Tensor& target) {
    const Tensor large = torch::zeros({kLarge});
    return squares(output, target) + large[0];
  });
  TrainOptions options = small();
  options.strategy(Strategy::kDataParallelClassic);
  options.devices(devices("2xcpu"));
  options.shards(0);
  options.evaluation().enabled(false);
  for (const size_t at : {size_t{0}, size_t{1}}) {
    options.output_device(options.devices()[at].name());
    const RunReport report = trainer.fit(options);
    EXPECT_GT(report.devices[at].memory_peak_bytes, kLarge) << at;
    EXPECT_LT(report.devices[1 - at].memory_peak_bytes, kLarge) << at;
  }
  const auto refusal = [&] {
    return error_of<InvalidArgument>([&] { trainer.fit(options); });
  };
  options.output_device("cpu:7");
  expect_problem(refusal(), ErrorCode::kNoSuchDevice, {"cpu:7"});
  options.output_device("cpu:1");
  options.strategy(Strategy::kDataParallel);
  expect_problem(refusal(), ErrorCode::kBadOption, {"dp-classic"});
}

}  // namespace
}  // namespace lockstep::training
