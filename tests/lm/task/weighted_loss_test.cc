// Losses that state their weight, trained and evaluated by every strategy:
// sentences of very different lengths, padded to those of a batch.
#include <algorithm>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/losses/cross_entropy.h"
#include "lockstep/train/trainer.h"
#include "tests/base/expect_problem.h"
#include "tests/train/report_of_ranks.h"
#include "tests/train/short_runs.h"

namespace lockstep::training::weighted_loss_test {
namespace {

using models::LanguageModel;
using torch::Tensor;

constexpr int64_t kIgnored = -100;
constexpr int64_t kVocabulary = 23;
constexpr int64_t kContext = 24;
constexpr int64_t kBatch = 16;
constexpr uint64_t kSeed = 5;
constexpr double kRate = 0.1;
constexpr double kSmallRate = 1e-3;

using Sample = std::pair<Tensor, Tensor>;

/// Sentences of ids and the ids that follow them. Those of `empty` have no
/// target that counts.
class Sentences {
 public:
  explicit Sentences(int64_t count, std::vector<bool> empty = {})
      : count_(count), empty_(std::move(empty)) {}

  size_t size() const { return static_cast<size_t>(count_); }
  Sample get(size_t index) const {
    const auto i = static_cast<int64_t>(index);
    // 1, 2 or up to the context: a few sentences have most of the targets.
    const int64_t length = i % 3 == 0   ? 1 + i % kContext
                           : i % 7 == 1 ? kContext
                                        : 1 + i % 2;
    const Tensor ids = (torch::arange(length + 1) * (i + 3) + i) % kVocabulary;
    Tensor targets = ids.slice(0, 1).clone();
    if (index < empty_.size() && empty_[index]) targets.fill_(kIgnored);
    return {ids.slice(0, 0, length), targets};
  }

 private:
  int64_t count_;
  std::vector<bool> empty_;
};

/// Sentences of which the first half of the first batch counts for nothing, and
/// so no target of rank 0 of 2.
std::shared_ptr<Sentences> training_sentences() {
  return std::make_shared<Sentences>(
      3 * kBatch, std::vector<bool>(static_cast<size_t>(kBatch) / 2, true));
}

Sample pad(const std::vector<Sample>& samples) {
  std::vector<Tensor> ids, targets;
  int64_t longest = 0;
  for (const Sample& sample : samples) {
    longest = std::max(longest, sample.first.numel());
  }
  for (const auto& [own_ids, own_targets] : samples) {
    const std::vector<int64_t> end{0, longest - own_ids.numel()};
    ids.push_back(torch::constant_pad_nd(own_ids, end, 0));
    targets.push_back(torch::constant_pad_nd(own_targets, end, kIgnored));
  }
  return {torch::stack(ids), torch::stack(targets)};
}

Sample padded_batch(const Sentences& data, int64_t begin, int64_t end) {
  std::vector<Sample> samples;
  for (int64_t i = begin; i < end; ++i) {
    samples.push_back(data.get(static_cast<size_t>(i)));
  }
  return pad(samples);
}

models::LanguageModelSpec spec() {
  models::LanguageModelSpec spec = models::language_spec("gpt-nano");
  spec.vocabulary = kVocabulary;
  spec.context = kContext;
  spec.layers = 2;
  return spec;
}

Tensor right_of(const Tensor& logits, const Tensor& targets) {
  return logits.detach().argmax(-1).eq(targets);
}

LossAndMetrics loss_of(const Tensor& logits, const Tensor& targets) {
  const Tensor tokens = targets.ne(kIgnored).sum();
  return {
      cross_entropy(logits.flatten(0, 1), targets.flatten()),
      {{"accuracy", right_of(logits, targets).sum().to(torch::kDouble) / tokens,
        tokens},
       {"length", targets.ne(kIgnored).sum(1).to(torch::kDouble).mean()}}};
}

using TextTrainer = Trainer<LanguageModel>;

TextTrainer text_trainer() {
  Trainer trainer([] { return models::make_language_model(spec()); });
  trainer.data(training_sentences(), pad)
      .test_data(std::make_shared<Sentences>(43), pad)
      .loss(loss_of)
      .optimizer([](LanguageModel& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), kRate);
      });
  return trainer;
}

TrainOptions options_for(int64_t accumulate) {
  TrainOptions options = short_run(kBatch, /*shards=*/0);
  options.evaluation().batch_size(10);  // of 43: the last one has 3
  options.accumulate(accumulate);
  options.epochs(2);
  options.seed(kSeed);
  options.loading().shuffle(false);
  return options;
}

/// A run of the textbook's data parallelism, on two slices.
TrainOptions classic_options() {
  TrainOptions options = options_for(1);
  options.strategy(Strategy::kDataParallelClassic);
  options.devices(cpu_slices(2));
  return options;
}

RunReport on_slices(TextTrainer trainer, TrainOptions options, int slices) {
  options.strategy(Strategy::kDataParallel);
  options.devices(cpu_slices(slices));
  return trainer.fit(options);
}

/// Rank 0's report of a run with ranks as threads.
RunReport on_ranks(const TextTrainer& trainer, TrainOptions options, int ranks,
                   const std::string& backend) {
  options.strategy(Strategy::kDistributed);
  options.devices().assign(static_cast<size_t>(ranks), cpu_slice());
  return report_of_ranks(ranks, backend, [&](const ProcessGroup& world) {
    TextTrainer own = trainer;
    return own.fit(options, world);
  });
}

struct NamedRun {
  std::string name;
  RunReport report;
};

/// The same run by every strategy and number of devices that gives it `shards`
/// shards, with micro-steps where there are fewer devices.
std::vector<NamedRun> runs_of(const TextTrainer& trainer, int64_t shards,
                              const TrainOptions& base = options_for(1)) {
  std::vector<NamedRun> runs;
  for (const int devices : {1, 2, 4}) {
    if (shards % devices != 0) continue;
    TrainOptions options = base;
    options.accumulate(shards / devices);
    const std::string name = fmt::format("{} of {}, accumulate {}", devices,
                                         shards, options.accumulate());
    if (devices == 1) {
      TextTrainer own = trainer;
      runs.push_back({"single, " + name, own.fit(options)});
      continue;
    }
    if (static_cast<int>(allowed_cores().size()) >= devices) {
      runs.push_back({"dp, " + name, on_slices(trainer, options, devices)});
    }
    for (const char* backend : {"shm", "tcp"}) {
      runs.push_back({fmt::format("ddp over {}, {}", backend, name),
                      on_ranks(trainer, options, devices, backend)});
    }
  }
  return runs;
}

/// The same training in plain LibTorch, on one device and with whole batches.
struct Plain {
  std::shared_ptr<LanguageModel> net = make();
  std::vector<double> losses;

  static std::shared_ptr<LanguageModel> make() {
    torch::manual_seed(kSeed);
    return models::make_language_model(spec());
  }

  Tensor loss_of(const Sample& batch,
                 const torch::nn::functional::CrossEntropyFuncOptions& options =
                     {}) const {
    return torch::nn::functional::cross_entropy(
        net->forward(batch.first).flatten(0, 1), batch.second.flatten(),
        options);
  }

  void train(const Sentences& data, bool sums = false, double rate = kRate) {
    torch::optim::SGD sgd(net->parameters(), rate);
    using Options = torch::nn::functional::CrossEntropyFuncOptions;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto size = static_cast<int64_t>(data.size());
      for (int64_t begin = 0; begin < size; begin += kBatch) {
        const Sample batch = padded_batch(data, begin, begin + kBatch);
        if (batch.second.eq(kIgnored).all().item<bool>()) continue;
        sgd.zero_grad();
        const Tensor loss =
            loss_of(batch, sums ? Options().reduction(torch::kSum) : Options());
        loss.backward();
        sgd.step();
        losses.push_back(loss.item<double>());
      }
    }
  }
};

void expect_near(const std::vector<double>& got,
                 const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-6 * std::max(1.0, expected[i]))
        << what << ", step " << i;
  }
}

void expect_near(const LanguageModel& got, const LanguageModel& expected,
                 const std::string& what) {
  const auto parameters = got.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(parameters[p].allclose(expected.parameters()[p], 1e-5, 1e-6))
        << what << ", parameter " << p;
  }
}

Plain trained_plain() {
  Plain plain;
  plain.train(*training_sentences());
  return plain;
}

/// Expects that all runs have the same bits, and the losses of `plain`.
void expect_same(const std::vector<NamedRun>& runs, const Plain& plain) {
  for (const auto& [name, report] : runs) {
    expect_same(report, runs.front().report, name);
    expect_near(report.losses, plain.losses, name);
  }
}

TEST(PaddedText, HasOneDigestInEveryStrategyAndTheLossOfTheWholeBatch) {
  const Plain plain = trained_plain();
  ASSERT_EQ(plain.losses.size(), 6u);
  for (const int64_t shards : {1, 2, 4, 8}) {
    expect_same(runs_of(text_trainer(), shards), plain);
  }
}

TEST(PaddedText, HasTheWeightsOfPlainTraining) {
  const Plain plain = trained_plain();
  for (const int64_t shards : {1, 4}) {
    TextTrainer trainer = text_trainer();
    trainer.fit(options_for(shards));
    expect_near(*trainer.module(), *plain.net, fmt::format("{}", shards));
  }
}

TEST(PaddedText, IsEvaluatedByTheToken) {
  TextTrainer trainer = text_trainer();
  const RunReport report = trainer.fit(options_for(4));
  // All tokens at once.
  const Sample all = padded_batch(Sentences(43), 0, 43);
  const torch::NoGradGuard no_grad;
  const Tensor logits = trainer.module()->forward(all.first);
  const Tensor counts = all.second.ne(kIgnored);
  const auto& metrics = report.test.metrics;
  EXPECT_EQ(report.test.samples, 43);
  EXPECT_NEAR(metrics.at("loss"),
              torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                   all.second.flatten())
                  .item<double>(),
              1e-6);
  EXPECT_NEAR(metrics.at("accuracy"),
              right_of(logits, all.second).sum().item<double>() /
                  counts.sum().item<double>(),
              1e-12);
  // A metric that states no weight is a mean over the sentences.
  EXPECT_NEAR(metrics.at("length"),
              counts.sum(1).to(torch::kDouble).mean().item<double>(), 1e-12);
}

TEST(PaddedText, TrainsByAStepFunctionWithoutTheLogits) {
  TextTrainer trainer = text_trainer();
  trainer.step([](LanguageModel& net, const data::Batch& batch) {
    const Tensor targets = batch.target;
    const Tensor tokens = targets.ne(kIgnored).sum();
    return LossAndMetrics(
        models::chunked_cross_entropy(net.hidden(batch.data).flatten(0, 1),
                                      net.head(), targets.flatten()),
        {{"tokens", tokens.to(torch::kDouble) / targets.size(0)}});
  });
  const Plain plain = trained_plain();
  const auto runs = runs_of(trainer, 4);
  expect_same(runs, plain);
  for (const auto& [name, report] : runs) {
    EXPECT_EQ(report.test.metrics.count("tokens"), 1u);
  }
}

TEST(PaddedText, TrainsAsNnDataParallelDoes) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "it needs two cores";
  const Plain plain = trained_plain();
  TextTrainer trainer = text_trainer();
  expect_near(trainer.fit(classic_options()).losses, plain.losses,
              "dp-classic");
  expect_near(*trainer.module(), *plain.net, "dp-classic");
}

/// The second of three batches counts for nothing.
std::shared_ptr<Sentences> with_an_empty_batch() {
  std::vector<bool> empty(2 * kBatch, true);
  std::fill_n(empty.begin(), kBatch, false);
  return std::make_shared<Sentences>(3 * kBatch, empty);
}

TEST(EmptyBatches, EndTheRunByDefault) {
  TextTrainer trainer = text_trainer();
  trainer.data(with_an_empty_batch(), pad);
  const auto refused = [](const auto& act) {
    expect_problem(error_of<Error>(act), ErrorCode::kEmptyBatch,
                   {"empty_batch"});
  };
  refused([&] { trainer.fit(options_for(4)); });
  refused([&] { on_ranks(trainer, options_for(2), 2, "shm"); });
  if (allowed_cores().size() < 2) return;
  const TrainOptions classic = classic_options();
  refused([&] { trainer.fit(classic); });
}

TEST(EmptyBatches, AreLeftOutIfToldSo) {
  TextTrainer trainer = text_trainer();
  trainer.data(with_an_empty_batch(), pad).empty_batch(EmptyBatch::kSkip);
  Plain plain;
  plain.train(*with_an_empty_batch());
  ASSERT_EQ(plain.losses.size(), 4u);
  TrainOptions options = options_for(1);
  // A loss of 0 would be no part of the losses that spikes are told by.
  options.spikes().action(OnSpike::kSkip);
  const auto runs = runs_of(trainer, 4, options);
  expect_same(runs, plain);
  for (const auto& [name, report] : runs) {
    EXPECT_EQ(report.steps, 6) << name;
    EXPECT_EQ(report.skipped_at, (std::vector<int64_t>{2, 5})) << name;
  }
  if (allowed_cores().size() < 2) return;
  const TrainOptions classic = classic_options();
  const RunReport report = trainer.fit(classic);
  expect_near(report.losses, plain.losses, "dp-classic");
  EXPECT_EQ(report.skipped_steps, 2);
}

// A sample weighs up to 24 tokens, so the first scale of the loss may be too
// large by as much. That costs one step, and not one for each halving.
TEST(EmptyBatches, ChangeNothingInFloat16) {
  TextTrainer trainer = text_trainer();
  trainer.data(with_an_empty_batch(), pad).empty_batch(EmptyBatch::kSkip);
  TrainOptions options = options_for(4);
  options.precision(Precision::kFloat16);
  options.epochs(4);
  const RunReport report = trainer.fit(options);
  EXPECT_GE(report.losses.size(), 7u);
  for (const int64_t empty : {2, 5, 8, 11}) {
    EXPECT_EQ(
        std::count(report.skipped_at.begin(), report.skipped_at.end(), empty),
        1);
  }
  TrainOptions on_two = options;
  on_two.accumulate(2);
  expect_same(on_ranks(trainer, on_two, 2, "shm"), report, "ddp");
}

TEST(EmptyBatches, OfOneRankLetTheOthersMakeLocalSteps) {
  TextTrainer trainer = text_trainer();
  trainer.empty_batch(EmptyBatch::kSkip);
  TrainOptions options = options_for(1);
  options.communication().local_steps(1);
  options.communication().outer_optimizer(OuterOptimizer::kAverage);
  const RunReport report = on_ranks(trainer, options, 2, "shm");
  EXPECT_EQ(report.skipped_steps, 0);
  ASSERT_EQ(report.losses.size(), 6u);
  // The loss of the first step is that of the whole batch: rank 0 has no part.
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(report.losses[0],
              Plain()
                  .loss_of(padded_batch(*training_sentences(), 0, kBatch))
                  .item<double>(),
              1e-5);
}

TEST(EmptyEvaluation, IsRefused) {
  TextTrainer trainer = text_trainer();
  trainer.test_data(std::make_shared<Sentences>(9, std::vector<bool>(9, true)),
                    pad);
  expect_problem(error_of<Error>([&] { trainer.fit(options_for(2)); }),
                 ErrorCode::kEmptyBatch, {"evaluation"});
}

TEST(SummedLosses, AreSummedOverTheBatchAndTheEvaluation) {
  TextTrainer trainer = text_trainer();
  trainer.loss_reduction(LossReduction::kSum)
      .loss([](const Tensor& logits, const Tensor& targets) {
        return torch::nn::functional::cross_entropy(
            logits.flatten(0, 1), targets.flatten(),
            torch::nn::functional::CrossEntropyFuncOptions().reduction(
                torch::kSum));
      })
      .optimizer([](LanguageModel& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(),
                                                   kSmallRate);
      });
  Plain plain;
  plain.train(*training_sentences(), /*sums=*/true, kSmallRate);
  const auto runs = runs_of(trainer, 4);
  expect_same(runs, plain);
  for (const auto& [name, report] : runs) {
    const torch::NoGradGuard no_grad;
    const double expected =
        plain
            .loss_of(padded_batch(Sentences(43), 0, 43),
                     torch::nn::functional::CrossEntropyFuncOptions().reduction(
                         torch::kSum))
            .item<double>();
    EXPECT_NEAR(report.test.metrics.at("loss"), expected, 1e-5 * expected);
  }
}

TEST(WeightedMetrics, RefuseWeightsThatAreNone) {
  for (const Tensor& weight :
       {torch::tensor(-1.0), torch::tensor(NAN), torch::ones({2})}) {
    TextTrainer trainer = text_trainer();
    trainer.loss([weight](const Tensor& logits, const Tensor& targets) {
      return LossAndMetrics(
          cross_entropy(logits.flatten(0, 1), targets.flatten()),
          {{"odd", torch::ones({}), weight}});
    });
    expect_problem(error_of<Error>([&] { trainer.fit(options_for(2)); }),
                   ErrorCode::kBadLoss, {"odd"});
  }
}

}  // namespace
}  // namespace lockstep::training::weighted_loss_test
