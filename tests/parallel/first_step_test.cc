#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/nets.h"

// What breaks a contract that no compiler checks is found in the first step,
// before anything is updated.
namespace lockstep::first_step_test {
namespace {

using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Mlp;
using testing_nets::Net;
using testing_nets::slices;
using torch::Tensor;

/// An encoder and a decoder that is to have the encoder's weights.
struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
  TiedImpl() {
    reset();
    tie();
  }
  void reset() override {
    encoder = register_module(
        "encoder",
        torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    decoder = register_module(
        "decoder",
        torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)));
  }
  /// As one writes it in Python, where it works.
  void tie() { decoder->weight = encoder->weight; }
  Tensor forward(const Tensor& x) { return decoder(norm(encoder(x))); }
  torch::nn::Linear encoder{nullptr}, decoder{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Tied);

/// The cure that the error names.
struct SharedWeightImpl : TiedImpl {
  Tensor forward(const Tensor& x) {
    return torch::nn::functional::linear(norm(encoder(x)), encoder->weight);
  }
};

/// Registers a layer at the first forward.
struct LazyImpl : torch::nn::Cloneable<LazyImpl> {
  LazyImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 4));
    later = nullptr;
  }
  Tensor forward(const Tensor& x) {
    if (!later) later = register_module("later", torch::nn::Linear(4, 4));
    return later(first(x));
  }
  torch::nn::Linear first{nullptr}, later{nullptr};
};

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

/// A member that reset() sets back.
struct ScaledImpl : torch::nn::Cloneable<ScaledImpl> {
  ScaledImpl() { reset(); }
  void reset() override {
    scale = 1;
    fc = register_module("fc", torch::nn::Linear(6, 4));
  }
  Tensor forward(const Tensor& x) { return fc(x) * scale; }
  double scale = 1;
  torch::nn::Linear fc{nullptr};
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

/// Returns a parameter as it is, and one of its inputs.
struct ExposingImpl : ScaledImpl {
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    return {fc(x), fc->weight};
  }
};

Tensor images() {
  torch::manual_seed(11);
  return torch::randn({12, 6});
}
Tensor classes() {
  torch::manual_seed(12);
  return torch::randint(4, {12});
}
Tensor mean_square(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

std::string text_of_error(const std::function<void()>& act,
                          ErrorCode expected_code) {
  try {
    act();
  } catch (const ParallelError& error) {
    EXPECT_EQ(error.code(), expected_code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(FirstStep, FindsWeightsThatAreTiedByAssignment) {
  for (const int k : {1, 2, 3}) {
    Tied net;
    const DataParallel model(net, slices(k));
    const auto sgd = optim::sgd(net->parameters(), {.lr = 0.1});
    const std::string before = bytes_of(*net);
    const Tensor x = images();
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_PRED2(
          contains,
          text_of_error([&] { model->forward(x); }, ErrorCode::kReplicaDiffers),
          "TiedImpl");
      EXPECT_PRED2(
          contains,
          text_of_error([&] { model->train_step(x, x, mean_square, *sgd); },
                        ErrorCode::kReplicaDiffers),
          "functional::linear(x, embedding->weight)");
    }
    EXPECT_EQ(bytes_of(*net), before) << "something was updated";
    for (const Tensor& parameter : net->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

TEST(FirstStep, FindsTiesThatShowInTheGradientsOnly) {
  Tied net;
  {
    // Values that are the same for now, as in a checkpoint of the tied model.
    const torch::NoGradGuard no_grad;
    net->named_parameters()["decoder.weight"].copy_(net->encoder->weight);
  }
  const DataParallel model(net, slices(2));
  const std::string text =
      text_of_error([&] { model->train_step(images(), images(), mean_square); },
                    ErrorCode::kReplicaDiffers);
  EXPECT_PRED2(contains, text, "weight'");
}

TEST(FirstStep, AcceptsTheCuresThatItNames) {
  const Tensor x = images();
  torch::manual_seed(1);
  Tied plain;
  const auto twin = std::make_shared<SharedWeightImpl>();
  torch::manual_seed(1);
  Tied tied;
  // A factory that ties as well.
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
                           DataParallelOptions().verify_first_step(false));
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
  const DataParallel model(
      net, slices(k),
      DataParallelOptions().shards(4).seed(2).verify_first_step(verifies));
  const auto sgd = optim::sgd(net->parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const Tensor x = torch::randn({16, 3, 6, 6});
    const Tensor y = torch::randint(4, {16});
    if (own_loop) {
      cross_entropy(model->forward(x), y).backward();
      sgd->step();
      sgd->zero_grad();
    } else {
      model->train_step(x, y, cross_entropy, *sgd);
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

// Losses.

Tensor summed(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, torch::one_hot(target, 4).to(output.dtype()),
                         torch::Reduction::Sum);
}
Tensor ignoring(const Tensor& output, const Tensor& target) {
  // Class 0 stands for what is to be ignored.
  return torch::nn::functional::cross_entropy(
      output, target,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(0));
}
/// Compares all samples of a batch with each other, as in InfoNCE.
Tensor contrastive(const Tensor& output, const Tensor&) {
  return torch::nn::functional::cross_entropy(output.matmul(output.t()),
                                              torch::arange(output.size(0)));
}
Tensor drawn(const Tensor& output, const Tensor& target) {
  return torch::nn::functional::cross_entropy(
      torch::dropout(output, 0.5, /*train=*/true), target);
}
Tensor uneven_targets() {
  // The first half has more ignored targets than the second.
  return torch::tensor({0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 1, 2});
}

using LossFunction = Tensor (*)(const Tensor&, const Tensor&);
struct LossCase {
  LossFunction loss;
  const char* advice;
};
const std::vector<LossCase>& refused_losses() {
  static const std::vector<LossCase> cases{
      {summed, "LossReduction::kSum"},
      {ignoring, "lockstep::cross_entropy"},
      {contrastive, "call forward()"}};
  return cases;
}

TEST(FirstStepLoss, ThatIsNoMeanIsRefused) {
  for (const LossCase& each : refused_losses()) {
    for (const int64_t shards : {2, 3}) {
      Mlp net;
      const DataParallel model(net, slices(2),
                               DataParallelOptions().shards(shards));
      const auto sgd = optim::sgd(net->parameters(), {.lr = 0.1});
      const std::string before = bytes_of(*net);
      const std::string text = text_of_error(
          [&] {
            model->train_step(images(), uneven_targets(), each.loss, *sgd);
          },
          ErrorCode::kLossNotMean);
      EXPECT_PRED2(contains, text, each.advice);
      EXPECT_TRUE(bytes_of(*net) == before);
    }
  }
}

TEST(FirstStepLoss, MayBeAnythingWithOneShard) {
  for (const LossCase& each : refused_losses()) {
    Mlp net;
    const DataParallel model(net, slices(1));
    EXPECT_NO_THROW(model->train_step(images(), uneven_targets(), each.loss));
  }
}

TEST(FirstStepLoss, IsCheckedForEachOfTwoLosses) {
  Mlp net;
  const DataParallel model(net, slices(2));
  model->train_step(images(), classes(), cross_entropy);
  text_of_error(
      [&] {
        model->train_step(images(), classes(),
                          [](const Tensor& output, const Tensor& target) {
                            return summed(output, target);
                          });
      },
      ErrorCode::kLossNotMean);
}

TEST(FirstStepLoss, IsCheckedInTheFirstStepThatIsFinite) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const Tensor broken = images().fill_(NAN);
  EXPECT_FALSE(model->train_step(broken, classes(), summed).is_finite);
  net->zero_grad();
  text_of_error([&] { model->train_step(images(), classes(), summed); },
                ErrorCode::kLossNotMean);
}

TEST(FirstStepLoss, ThatDrawsRandomNumbersIsReportedOnce) {
  const LogCapture log;
  Mlp net;
  const DataParallel model(net, slices(2));
  for (int step = 0; step < 3; ++step) {
    model->train_step(images(), classes(), drawn);
  }
  const std::string text = log.text();
  EXPECT_PRED2(contains, text, "could not check the loss");
  EXPECT_EQ(text.find("could not check"), text.rfind("could not check"));
}

TEST(FirstStepLoss, WhoseTermsCancelOutIsComparedAsExactlyAsTheyAre) {
  const auto cancelling = [](const Tensor& output, const Tensor&) {
    return (output - output.detach().mean({1}, /*keepdim=*/true)).mean();
  };
  for (const int64_t shards : {2, 3, 4, 5}) {
    Mlp net;
    const DataParallel model(net, slices(2),
                             DataParallelOptions().shards(shards));
    EXPECT_NO_THROW(model->train_step(images(), classes(), cancelling));
  }
}

// The mean over no targets is NaN, the mean over all of them is not.
TEST(FirstStepLoss, OfAShardWhoseTargetsAreAllIgnoredIsRefused) {
  Mlp net;
  const DataParallel model(net, slices(2));
  text_of_error(
      [&] {
        model->train_step(images(),
                          torch::tensor({0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3}),
                          ignoring);
      },
      ErrorCode::kLossNotMean);
}

// Both shards have as many targets that count.
TEST(FirstStepLoss, ThatIgnoresTargetsIsFoundByItsSamples) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const std::string text = text_of_error(
      [&] {
        model->train_step(images(),
                          torch::tensor({1, 0, 2, 0, 3, 1, 2, 0, 3, 0, 1, 2}),
                          ignoring);
      },
      ErrorCode::kLossNotMean);
  EXPECT_PRED2(contains, text, "samples' losses");
}

TEST(FirstStepLoss, WithWeightsThatDoNotAddUpIsRefused) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const std::string text = text_of_error(
      [&] {
        model->train_step(
            images(), classes(),
            [](const Tensor& output, const Tensor& target) -> WeightedLoss {
              // The square of what it should be.
              return {cross_entropy(output, target),
                      target.size(0) * target.size(0)};
            });
      },
      ErrorCode::kLossNotMean);
  EXPECT_PRED2(contains, text, "do not add up");
}

// Ranks.

/// The errors of two ranks.
std::vector<std::string> errors_of_ranks(
    const std::string& backend, const std::function<void(const World&)>& act) {
  std::vector<std::string> texts(2);
  spawn(2,
        [&](const World& world) {
          try {
            act(world);
          } catch (const ParallelError& error) {
            texts[static_cast<size_t>(world.rank())] = error.what();
          }
        },
        {.backend = backend});
  return texts;
}

class FirstStepOfRanks : public testing::TestWithParam<const char*> {};

TEST_P(FirstStepOfRanks, IsRefusedByAllWithOneError) {
  const Tensor x = images(), y = uneven_targets();
  const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
    Tied net;
    // Only rank 1's replica is another network.
    const DistributedDataParallel<TiedImpl> model(
        net.ptr(),
        [&]() -> std::shared_ptr<TiedImpl> {
          const auto made = std::make_shared<TiedImpl>();
          if (world.rank() == 1) {
            made->decoder->weight = made->named_parameters()["decoder.weight"];
          }
          return made;
        },
        world);
    const auto sgd = optim::sgd(net->parameters(), {.lr = 0.1});
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::string before = bytes_of(*net);
      try {
        model->train_step(x.narrow(0, world.rank() * 6, 6),
                          x.narrow(0, world.rank() * 6, 6), mean_square, *sgd);
        ADD_FAILURE() << "rank " << world.rank() << " was not told";
      } catch (const ParallelError&) {
        EXPECT_TRUE(bytes_of(*net) == before);
        if (attempt == 1) throw;
      }
    }
  });
  EXPECT_PRED2(contains, texts[0], "[replica-differs]");
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_P(FirstStepOfRanks, RefusesLossesThatAreNoMeans) {
  const Tensor x = images(), y = uneven_targets();
  for (const LossCase& each : refused_losses()) {
    for (const bool ddp : {false, true}) {
      const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
        Mlp net;
        const auto sgd = optim::sgd(net->parameters(), {.lr = 0.1});
        const auto step = [&](const auto& model) {
          model->train_step(x.narrow(0, world.rank() * 6, 6),
                            y.narrow(0, world.rank() * 6, 6), each.loss, *sgd);
        };
        if (ddp) {
          step(DistributedDataParallel(net, world));
        } else {
          step(DataParallel(net, {slices(2)[world.rank()]},
                            DataParallelOptions().world(world)));
        }
      });
      EXPECT_PRED2(contains, texts[0], each.advice);
      EXPECT_EQ(texts[0], texts[1]);
    }
  }
}

/// A mean over tokens, of which those of class 0 are padding.
Tensor token_loss(const Tensor& output, const Tensor& target) {
  return ignoring(output.reshape({-1, output.size(-1)}), target.reshape({-1}));
}

// On each rank all texts have the same length, and so the loss is a mean.
TEST_P(FirstStepOfRanks, ComparesTheLossesOfDifferentRanks) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({8, 3, 6});
  const Tensor full = torch::randint(1, 4, {4, 3});
  Tensor padded = torch::randint(1, 4, {4, 3});
  padded.narrow(1, 1, 2).fill_(0);
  const Tensor y = torch::cat({full, padded});
  const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
    Mlp net;
    const DistributedDataParallel model(net, world);
    model->train_step(x.narrow(0, world.rank() * 4, 4),
                      y.narrow(0, world.rank() * 4, 4), token_loss);
  });
  EXPECT_PRED2(contains, texts[0], "[loss-not-mean]");
  EXPECT_PRED2(contains, texts[0], "ranks' losses");
  EXPECT_EQ(texts[0], texts[1]);
}

// As the first call, before any step: it is no collective call.
TEST_P(FirstStepOfRanks, ComparesReplicasInAnEvaluation) {
  const Tensor x = images();
  const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
    const auto net = std::make_shared<ScaledImpl>();
    net->scale = 3;
    const DataParallel<ScaledImpl> model(
        net, [] { return std::make_shared<ScaledImpl>(); }, slices(2),
        DataParallelOptions().world(world));
    if (world.rank() == 1) return;
    const torch::NoGradGuard no_grad;
    model->forward(x);
  });
  EXPECT_PRED2(contains, texts[0], "[replica-differs]");
}

TEST_P(FirstStepOfRanks, FindsLayersThatTheForwardOfDdpRegisters) {
  const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
    const DistributedDataParallel<LazyImpl> model(std::make_shared<LazyImpl>(),
                                                  world);
    model->forward(images());
  });
  EXPECT_PRED2(contains, texts[0], "[module-changed]");
  EXPECT_PRED2(contains, texts[0], "'later.weight'");
}

TEST_P(FirstStepOfRanks, IsNotMadeForADdpLoopOfOnesOwn) {
  // Its forward() is the module's own.
  const Tensor x = images();
  const auto texts = errors_of_ranks(GetParam(), [&](const World& world) {
    const auto net = std::make_shared<SharedWeightImpl>();
    const DistributedDataParallel<SharedWeightImpl> model(
        net, [] { return std::make_shared<SharedWeightImpl>(); }, world,
        DistributedDataParallelOptions().find_unused_parameters(true));
    mean_square(model->forward(x), x).backward();
  });
  EXPECT_EQ(texts, std::vector<std::string>(2));
}

INSTANTIATE_TEST_SUITE_P(Backends, FirstStepOfRanks,
                         testing::Values("shm", "gloo"));

}  // namespace
}  // namespace lockstep::first_step_test
