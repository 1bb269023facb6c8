#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/losses/cross_entropy.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/first_step_cases.h"

// Modules and losses that break a contract that no compiler checks. The first
// step finds them before anything is updated.
namespace lockstep::first_step_test {
namespace {

/// Registers a parameter at the first forward.
struct LateParameterImpl : torch::nn::Cloneable<LateParameterImpl> {
  LateParameterImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(6, 4));
    gain = Tensor();
  }
  Tensor forward(const Tensor& x) {
    if (!gain.defined()) gain = register_parameter("gain", torch::ones({4}));
    return fc(x) * gain;
  }
  torch::nn::Linear fc{nullptr};
  Tensor gain;
};

/// Draws its noise from a generator of its own.
struct NoisyImpl : ScaledImpl {
  Tensor forward(const Tensor& x) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    static std::mt19937 engine;
    return fc(x) * std::uniform_real_distribution<double>(0.5, 1.5)(engine);
  }
};

/// Writes to its buffers and to its input, and draws its noise from a generator
/// of its own.
struct WritingNoisyImpl : NoisyImpl {
  WritingNoisyImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  Tensor forward(Tensor x) { return norm(NoisyImpl::forward(x.add_(1))); }
  torch::nn::BatchNorm1d norm{nullptr};
};

/// Counts its calls in a member.
struct CountingImpl : ScaledImpl {
  Tensor forward(const Tensor& x) {
    return fc(x) * static_cast<double>(++calls);
  }
  int calls = 0;
};

/// Notes whether another forward runs at the same time as that of `module`.
struct WatchedImpl : ScaledImpl {
  Tensor forward(const Tensor& x) {
    ++running;
    Tensor y = fc(x);
    // Long enough for the other shards to begin.
    for (int i = 0; i < 20; ++i)
      torch::randn({100, 100}).matmul(torch::randn({100, 100}));
    if (this == module && running > 1) has_company = true;
    --running;
    return y;
  }
  static inline std::atomic<const WatchedImpl*> module = nullptr;
  static inline std::atomic<int> running = 0;
  static inline std::atomic<bool> has_company = false;
};

/// Gives zeros for samples with a negative sum, and no gradient.
struct GatedImpl : torch::nn::Cloneable<GatedImpl> {
  GatedImpl() { reset(); }
  void reset() override {
    encoder = register_module("encoder", torch::nn::Linear(6, 6));
    decoder = register_module("decoder", torch::nn::Linear(6, 6));
  }
  Tensor forward(const Tensor& x) {
    return x.sum(1, /*keepdim=*/true).relu() * decoder(encoder(x));
  }
  torch::nn::Linear encoder{nullptr}, decoder{nullptr};
};

/// Returns a parameter as it is, and one of its inputs.
struct ExposingImpl : ScaledImpl {
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    return {fc(x), fc->weight};
  }
};

TEST(FirstStep, FindsWeightsThatAreTiedByAssignment) {
  for (const int k : {1, 2, 3}) {
    Tied net;
    const DataParallel model(net, slices(k));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const std::string before = bytes_of(*net);
    const Tensor x = images();
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_PRED2(
          contains,
          text_of_error([&] { model->forward(x); }, ErrorCode::kReplicaDiffers),
          "TiedImpl");
      EXPECT_PRED2(
          contains,
          text_of_error([&] { model->train_step(x, x, mean_square, sgd); },
                        ErrorCode::kReplicaDiffers),
          "functional::linear(x, embedding->weight)");
    }
    EXPECT_EQ(bytes_of(*net), before) << "something was updated";
    for (const Tensor& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

/// Tied weights that only gradients show: the values are the same for now, as
/// in a checkpoint of the tied model.
Tied tied_with_equal_values() {
  Tied net;
  const torch::NoGradGuard no_grad;
  net->named_parameters()["decoder.weight"].copy_(net->encoder->weight);
  return net;
}

TEST(FirstStep, FindsTiesThatShowInTheGradientsOnly) {
  const Tied net = tied_with_equal_values();
  const DataParallel model(net, slices(2));
  const std::string text =
      text_of_error([&] { model->train_step(images(), images(), mean_square); },
                    ErrorCode::kReplicaDiffers);
  EXPECT_PRED2(contains, text, "weight'");
}

TEST(FirstStep, FindsTiesIfTheFirstShardHasTheWeightZero) {
  const Tied net = tied_with_equal_values();
  const DataParallel model(net, slices(2));
  const auto loss = [](const Tensor& output, const Tensor& target) {
    return WeightedLoss(torch::mse_loss(output, target),
                        (target != 0).all(1).sum());
  };
  const Tensor target = torch::cat({torch::zeros({6, 6}), torch::ones({6, 6})});
  const std::string before = bytes_of(*net);
  const std::string text =
      text_of_error([&] { model->train_step(images(), target, loss); },
                    ErrorCode::kReplicaDiffers);
  EXPECT_PRED2(contains, text, "weight'");
  EXPECT_EQ(bytes_of(*net), before);
}

TEST(FirstStep, FindsTiesIfTheFirstShardGivesZerosOnly) {
  for (const bool is_frozen : {false, true}) {
    const auto net = std::make_shared<GatedImpl>();
    net->decoder->weight = net->encoder->weight;
    if (is_frozen) {
      for (Tensor& weight : net->parameters()) {
        weight.set_requires_grad(weight.dim() == 1);
      }
    }
    const DataParallel model(net, slices(3));
    Tensor x = images().abs();
    x.narrow(0, 0, 4).neg_();
    const std::string before = bytes_of(*net);
    EXPECT_PRED2(contains,
                 text_of_error([&] { model->train_step(x, x, mean_square); },
                               ErrorCode::kReplicaDiffers),
                 "tied by assignment");
    EXPECT_PRED2(
        contains,
        text_of_error([&] { model->forward(x); }, ErrorCode::kReplicaDiffers),
        "tied by assignment");
    EXPECT_EQ(bytes_of(*net), before);
  }
}

TEST(FirstStep, AcceptsAFirstShardWithTheWeightZero) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const StepResult result = model->train_step(
      images(), std::get<0>(uneven_targets().sort()),
      [](const Tensor& output, const Tensor& target) {
        return lockstep::cross_entropy(
            output, target,
            torch::nn::functional::CrossEntropyFuncOptions().ignore_index(0));
      });
  EXPECT_TRUE(result.is_finite);
}

TEST(FirstStep, AcceptsTheCuresThatItNames) {
  const Tensor x = images();
  torch::manual_seed(1);
  Tied plain;
  const auto twin = std::make_shared<SharedWeightImpl>();
  torch::manual_seed(1);
  Tied tied;
  // The factory also ties the weights.
  const DataParallel<TiedImpl> model(
      tied.ptr(), [] { return std::make_shared<TiedImpl>(); }, slices(2));
  mean_square(plain->forward(x), x).backward();
  mean_square(model->forward(x), x).backward();
  plain->eval();
  EXPECT_TRUE(plain->encoder->weight.grad().defined());
  EXPECT_TRUE(tied->encoder->weight.grad().defined());
  // One parameter in both places.
  const DataParallel<SharedWeightImpl> shared(
      twin, [] { return std::make_shared<SharedWeightImpl>(); }, slices(2));
  EXPECT_NO_THROW(shared->train_step(x, x, mean_square));
}

TEST(FirstStep, FindsLayersThatForwardRegisters) {
  const auto net = std::make_shared<LazyImpl>();
  const DataParallel<LazyImpl> model(net, slices(2));
  EXPECT_PRED2(contains,
               text_of_error([&] { model->forward(images()); },
                             ErrorCode::kReplicaDiffers),
               "forward() registers");
  // The cure that it names.
  const auto called = std::make_shared<LazyImpl>();
  called->forward(images());
  const DataParallel<LazyImpl> wrapped(
      called,
      [] {
        auto made = std::make_shared<LazyImpl>();
        made->forward(torch::zeros({1, 6}));
        return made;
      },
      slices(2));
  EXPECT_NO_THROW(wrapped->forward(images()));
}

TEST(FirstStep, FindsParametersThatForwardRegisters) {
  for (const bool own_loop : {false, true}) {
    const DataParallel<LateParameterImpl> model(
        std::make_shared<LateParameterImpl>(), slices(2));
    const std::string text = text_of_error(
        [&] {
          if (own_loop) {
            model->forward(images());
          } else {
            model->train_step(images(), classes(), cross_entropy);
          }
        },
        ErrorCode::kReplicaDiffers);
    EXPECT_PRED2(contains, text, "forward() registers a submodule, parameter");
  }
}

TEST(FirstStep, FindsMembersThatAReplicaDoesNotHave) {
  const auto net = std::make_shared<ScaledImpl>();
  net->scale = 3;  // reset(), which clone() calls, sets it back
  const DataParallel<ScaledImpl> model(net, slices(2));
  EXPECT_PRED2(
      contains,
      text_of_error(
          [&] { model->train_step(images(), classes(), cross_entropy); },
          ErrorCode::kReplicaDiffers),
      "output differs");
}

/// Keeps its output in a member, for a loss that reads it there.
struct KeepingImpl : ScaledImpl {
  Tensor forward(const Tensor& x) {
    kept = ScaledImpl::forward(x);
    return kept;
  }
  Tensor kept;
};

TEST(FirstStep, FindsALossThatReadsWhatForwardKeeps) {
  for (const int k : {1, 2}) {
    const auto net = std::make_shared<KeepingImpl>();
    const DataParallel<KeepingImpl> model(
        net, [] { return std::make_shared<KeepingImpl>(); }, slices(k));
    const auto loss = [&](const Tensor& output, const Tensor& target) {
      return cross_entropy(output, target) + net->kept.detach().square().mean();
    };
    EXPECT_PRED2(
        contains,
        text_of_error([&] { model->train_step(images(), classes(), loss); },
                      ErrorCode::kReplicaDiffers),
        "a member which forward() assigns to");
  }
}

TEST(FirstStep, SaysThatReplicasKeepTheirOwnMembers) {
  const LogCapture log;
  const auto net = std::make_shared<KeepingImpl>();
  const DataParallel<KeepingImpl> model(
      net, [] { return std::make_shared<KeepingImpl>(); }, slices(2));
  for (int i = 0; i < 3; ++i) model->forward(images());
  EXPECT_PRED2(contains, log.text(), "assigns to members");
}

TEST(FirstStep, ComparesAgainAfterARebuild) {
  const auto net = std::make_shared<ScaledImpl>();
  const DataParallel<ScaledImpl> model(
      net, [] { return std::make_shared<ScaledImpl>(); }, slices(2));
  EXPECT_NO_THROW(model->forward(images()));
  net->scale = 2;
  model->rebuild();
  text_of_error([&] { model->forward(images()); }, ErrorCode::kReplicaDiffers);
  net->scale = 1;
  EXPECT_NO_THROW(model->forward(images()));
}

TEST(FirstStep, LetsWrongNumbersThroughIfSwitchedOff) {
  Tied net;
  const Tensor x = images();
  const Tensor expected = net->forward(x);
  const DataParallel model(net, slices(2),
                           DataParallelOptions().verify(Verify::kNever));
  EXPECT_FALSE(torch::allclose(model->forward(x), expected));
}

TEST(FirstStep, SaysOnceThatAModuleCannotBeCompared) {
  const LogCapture log;
  const auto net = std::make_shared<NoisyImpl>();
  const DataParallel<NoisyImpl> model(
      net, [] { return std::make_shared<NoisyImpl>(); }, slices(2));
  for (int step = 0; step < 3; ++step) {
    model->train_step(images(), classes(), cross_entropy);
  }
  const std::string text = log.text();
  EXPECT_PRED2(contains, text, "could not check replicas");
  EXPECT_PRED2(contains, text, "NoisyImpl");
  EXPECT_EQ(text.find("could not check"), text.rfind("could not check"));
}

// The module runs once more between the forward and the backward of the
// replicas. BatchNorm saves its statistics for the backward, and a Linear its
// input.
TEST(FirstStep, LeavesWhatABackwardNeeds) {
  const LogCapture log;
  const DataParallel<WritingNoisyImpl> model(
      std::make_shared<WritingNoisyImpl>(),
      [] { return std::make_shared<WritingNoisyImpl>(); }, slices(2));
  const Tensor x = images();
  const Tensor before = x.clone();
  cross_entropy(model->forward(x), classes()).backward();
  EXPECT_PRED2(contains, log.text(), "could not check replicas");
  EXPECT_TRUE(torch::equal(x, before + 1));
  EXPECT_EQ(model->module()->norm->num_batches_tracked.item<int64_t>(), 1);
}

// The replicas count as well, but each only its own calls.
TEST(FirstStep, SaysThatAModuleCountsItsCalls) {
  for (const bool own_loop : {false, true}) {
    const LogCapture log;
    const auto net = std::make_shared<CountingImpl>();
    const DataParallel<CountingImpl> model(
        net, [] { return std::make_shared<CountingImpl>(); }, slices(2));
    if (own_loop) {
      EXPECT_NO_THROW(model->forward(images()));
    } else {
      EXPECT_NO_THROW(model->train_step(images(), classes(), cross_entropy));
    }
    EXPECT_PRED2(contains, log.text(), "it changes itself in forward()");
  }
}

std::string trained(bool verifies, int k, bool own_loop) {
  torch::manual_seed(1);
  Net net;  // with BatchNorm and dropout
  int hooks = 0;
  net->parameters()[0].register_hook([&](const Tensor& gradient) {
    ++hooks;
    return gradient * 2;
  });
  const DataParallel model(net, slices(k),
                           DataParallelOptions().shards(4).seed(2).verify(
                               verifies ? Verify::kDoubling : Verify::kNever));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const Tensor x = torch::randn({16, 3, 6, 6});
    const Tensor y = torch::randint(4, {16});
    if (own_loop) {
      cross_entropy(model->forward(x), y).backward();
      sgd.step();
      sgd.zero_grad();
    } else {
      model->train_step(x, y, cross_entropy, sgd);
    }
  }
  EXPECT_EQ(hooks, 3);
  return bytes_of(*net);
}

TEST(FirstStep, ChangesNoBitAndCallsNoHook) {
  for (const int k : {1, 2, 4}) {
    for (const bool own_loop : {false, true}) {
      EXPECT_TRUE(trained(true, k, own_loop) == trained(false, k, own_loop))
          << k << " slices, " << (own_loop ? "a loop of one's own" : "");
    }
  }
}

TEST(FirstStep, RunsTheModuleWhileNoReplicaRuns) {
  // The loss of another shard may use the module's parameters directly.
  for (const bool own_loop : {false, true}) {
    const auto net = std::make_shared<WatchedImpl>();
    WatchedImpl::module = net.get();
    const DataParallel<WatchedImpl> model(
        net, [] { return std::make_shared<WatchedImpl>(); }, slices(3));
    if (own_loop) {
      model->forward(images());
    } else {
      model->train_step(images(), classes(), cross_entropy);
    }
    EXPECT_FALSE(WatchedImpl::has_company);
  }
}

TEST(FirstStep, MayBeAnEvaluationThatReturnsAParameter) {
  const auto net = std::make_shared<ExposingImpl>();
  const DataParallel<ExposingImpl> model(
      net, [] { return std::make_shared<ExposingImpl>(); }, slices(2));
  const torch::NoGradGuard no_grad;
  const auto [y, weights] = model->forward(images());
  EXPECT_TRUE(torch::allclose(y, net->fc(images())));
  EXPECT_TRUE(
      torch::equal(weights, torch::cat({net->fc->weight, net->fc->weight})));
}

TEST(FirstStep, KeepsGradientsThatAreThere) {
  Mlp net;
  const Tensor kept = torch::ones_like(net->parameters()[0]);
  net->parameters()[0].mutable_grad() = kept.clone();
  const DataParallel model(net, slices(2));
  model->forward(images());
  EXPECT_TRUE(torch::equal(net->parameters()[0].grad(), kept));
}

}  // namespace
}  // namespace lockstep::first_step_test
