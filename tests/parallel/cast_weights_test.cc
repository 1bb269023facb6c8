// Under autocast, replicas use weights that the update has cast. The bits must
// be those of autocast, which casts them in each step.
#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/bfloat16_loops.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/fused_optimizer.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::cast_weights_test {
namespace {

using testing_nets::slices;
using torch::Tensor;

constexpr int64_t kIn = 24;
constexpr int64_t kHidden = 40;
constexpr int64_t kClasses = 8;

/// An MLP, with some unusual uses of its first weight.
struct PlainImpl : torch::nn::Cloneable<PlainImpl> {
  PlainImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(kIn, kHidden));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})));
    last = register_module("last", torch::nn::Linear(kHidden, kClasses));
  }
  virtual Tensor forward(const Tensor& x) {
    return last(torch::relu(norm(first(x))));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

/// Also uses a weight in float, where autocast does not cast it.
struct TiedImpl : PlainImpl {
  Tensor forward(const Tensor& x) override {
    return PlainImpl::forward(x) + first->weight.sum() * 0.01;
  }
};

/// Uses a weight twice. Autocast sums the two gradients in float.
struct TwiceImpl : PlainImpl {
  Tensor forward(const Tensor& x) override {
    return PlainImpl::forward(x) + PlainImpl::forward(x * 0.5);
  }
};

/// Computes something else if the weight has another type. The graph does not
/// show it.
struct LooksAtTypeImpl : PlainImpl {
  Tensor forward(const Tensor& x) override {
    return PlainImpl::forward(x) *
           (first->weight.scalar_type() == torch::kFloat ? 1.0 : 1.5);
  }
};

/// Reads the elements of the weight as float.
struct ReadsElementsImpl : PlainImpl {
  Tensor forward(const Tensor& x) override {
    return PlainImpl::forward(x) *
           (1 + first->weight.detach().data_ptr<float>()[0]);
  }
};

/// Reads the value of the weight in float, without a gradient.
struct ReadsImpl : PlainImpl {
  Tensor forward(const Tensor& x) override {
    return PlainImpl::forward(x) * first->weight.detach().square().mean();
  }
};

/// Inherits the clone() of a Cloneable for a class derived from Plain.
template <class Impl>
struct Cloned : torch::nn::Cloneable<Cloned<Impl>> {
  Cloned() { reset(); }
  void reset() override {
    net = this->register_module("net", std::make_shared<Impl>());
  }
  Tensor forward(const Tensor& x) { return net->forward(x); }
  std::shared_ptr<Impl> net;
};

/// Counts the casts to bfloat16 of tensors with the shape of a weight.
class CountedCasts {
 public:
  CountedCasts() {
    count_ = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function)
                                       -> std::unique_ptr<at::ObserverContext> {
          if (std::string(function.name()) != "aten::_to_copy") return {};
          const auto inputs = function.inputs();
          if (inputs.empty() || !inputs[0].isTensor()) return {};
          const Tensor tensor = inputs[0].toTensor();
          const bool is_weight =
              tensor.dim() == 2 && tensor.scalar_type() == torch::kFloat &&
              (tensor.size(0) == kHidden || tensor.size(1) == kHidden) &&
              tensor.numel() >= kHidden * kClasses;
          if (is_weight && tensor.size(0) != 16) ++count_;
          return {};
        })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedCasts() { at::removeCallback(handle_); }
  CountedCasts(const CountedCasts&) = delete;
  CountedCasts& operator=(const CountedCasts&) = delete;
  static int count() { return count_; }

 private:
  static inline std::atomic<int> count_ = 0;
  at::CallbackHandle handle_{};
};

struct Options {
  int devices = 2;
  int shards = 2;
  int steps = 5;
  double clip = 0;
  bool verifies = true;
  /// Called before each step.
  std::function<void(int step, torch::nn::Module& net)> before{};
};

struct Trained {
  std::string digest;
  int casts = 0;  // of weights, in the last step
};

/// Trains on one device or on one for each shard. One device computes all
/// shards, and leaves the casts to autocast.
template <class Impl>
Trained train(const Options& options) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Cloned<Impl>>();
  const DataParallel model(
      net, slices(options.devices),
      DataParallelOptions()
          .shards(options.shards)
          .intra_op_threads(1)
          .verify(options.verifies ? Verify::kFirst : Verify::kNever));
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto loss = [](const Tensor& out, const Tensor& labels) {
    return torch::nn::functional::cross_entropy(out, labels);
  };
  Trained run;
  for (int step = 0; step < options.steps; ++step) {
    torch::manual_seed(100 + static_cast<uint64_t>(step));
    const Tensor x = torch::randn({32, kIn});
    const Tensor labels = torch::randint(kClasses, {32});
    if (options.before) options.before(step, *net);
    const CountedCasts casts;
    const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
    model->train_step(x, labels, loss, sgd,
                      TrainStepOptions().clip_grad_norm(options.clip));
    run.casts = CountedCasts::count();
  }
  Checksum sum;
  for (const Tensor& parameter : net->parameters()) {
    add_elements(sum, parameter);
  }
  run.digest = sum.hex();
  return run;
}

template <class Impl>
void expect_same_bits(Options options, bool has_casts) {
  options.devices = 1;
  const Trained by_autocast = train<Impl>(options);
  options.devices = options.shards;
  const Trained run = train<Impl>(options);
  EXPECT_EQ(run.digest, by_autocast.digest);
  EXPECT_GE(by_autocast.casts, 2 * options.shards);  // two weights
  EXPECT_EQ(run.casts > 0, has_casts) << run.casts;
}

TEST(CastWeights, HaveTheBitsOfAutocast) {
  expect_same_bits<PlainImpl>({}, /*has_casts=*/false);
}

TEST(CastWeights, HaveTheBitsOfAutocastWithoutTheCheckOfTheFirstStep) {
  expect_same_bits<PlainImpl>({.verifies = false}, /*has_casts=*/false);
}

TEST(CastWeights, HaveTheBitsOfAutocastWithClippedGradients) {
  expect_same_bits<PlainImpl>({.clip = 0.05}, /*has_casts=*/false);
}

TEST(CastWeights, HaveTheBitsOfAutocastWithSeveralSums) {
  expect_same_bits<PlainImpl>({.shards = 4}, /*has_casts=*/false);
  expect_same_bits<PlainImpl>({.shards = 4, .clip = 0.05},
                              /*has_casts=*/false);
  expect_same_bits<PlainImpl>({.shards = 5}, /*has_casts=*/false);
}

TEST(CastWeights, AreNotMadeForAWeightThatIsAlsoUsedInFloat) {
  const Trained run = train<TiedImpl>({});
  EXPECT_EQ(run.digest, train<TiedImpl>({.devices = 1}).digest);
  EXPECT_EQ(run.casts, 2);  // the first weight, in both shards
}

TEST(CastWeights, AreNotMadeForAWeightThatIsUsedTwice) {
  expect_same_bits<TwiceImpl>({}, /*has_casts=*/true);
}

TEST(CastWeights, AreNotUsedIfTheModuleComputesSomethingElseWithThem) {
  expect_same_bits<LooksAtTypeImpl>({}, /*has_casts=*/true);
  expect_same_bits<ReadsImpl>({}, /*has_casts=*/true);
  expect_same_bits<ReadsElementsImpl>({}, /*has_casts=*/true);
}

TEST(CastWeights, FollowAChangeOfTheParameters) {
  const auto halve = [](int step, torch::nn::Module& net) {
    if (step != 3) return;
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : net.parameters()) parameter.mul_(0.5);
  };
  expect_same_bits<PlainImpl>({.before = halve}, /*has_casts=*/false);
}

// LibTorch's SGD writes through data(), which does not count versions.
TEST(CastWeights, FollowAnOptimizerThatLeavesNoVersion) {
  const auto halve = [](int step, torch::nn::Module& net) {
    if (step != 3) return;
    for (Tensor& parameter : net.parameters()) parameter.data().mul_(0.5);
  };
  expect_same_bits<PlainImpl>({.before = halve}, /*has_casts=*/false);
}

TEST(CastWeights, FollowParametersInOtherMemory) {
  const auto move = [](int step, torch::nn::Module& net) {
    if (step != 3) return;
    for (Tensor& parameter : net.parameters()) {
      parameter.set_data(parameter.detach().clone() * 0.5);
    }
  };
  expect_same_bits<PlainImpl>({.before = move}, /*has_casts=*/false);
}

TEST(CastWeights, AnElementWrittenWithoutATraceIsAnError) {
  const auto write = [](int step, torch::nn::Module& net) {
    if (step != 3) return;
    net.named_parameters()["net.first.weight"].data().view(-1)[100].fill_(7);
  };
  try {
    train<PlainImpl>({.before = write});
    FAIL() << "nothing was thrown";
  } catch (const ParallelError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kParameterWritten);
    EXPECT_NE(std::string(error.what()).find("'net.first.weight'"),
              std::string::npos)
        << error.what();
  }
}

TEST(CastWeights, AForwardWithoutAutocastComputesInFloat) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Cloned<PlainImpl>>();
  const DataParallel model(net, slices(2),
                           DataParallelOptions().intra_op_threads(1));
  torch::optim::SGD sgd(model->parameters(), 0.05);
  const Tensor x = torch::randn({32, kIn});
  const Tensor labels = torch::randint(kClasses, {32});
  const auto loss = [](const Tensor& out, const Tensor& target) {
    return torch::nn::functional::cross_entropy(out, target);
  };
  for (int step = 0; step < 4; ++step) {
    const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
    model->train_step(x, labels, loss, sgd);
  }
  const torch::NoGradGuard no_grad;
  const Tensor out = model->forward(x);
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  // Two halves: a product of other shapes may add in another order.
  const Tensor expected = torch::cat(
      {net->forward(x.narrow(0, 0, 16)), net->forward(x.narrow(0, 16, 16))});
  EXPECT_TRUE(torch::equal(out, expected));
  // And a step without autocast.
  EXPECT_NO_THROW(model->train_step(x, labels, loss, sgd));
}

// The user's own loop between the steps of the engine.
TEST(CastWeights, FollowTheStepsOfAFusedOptimizer) {
  const auto train_both = [](int devices) {
    torch::manual_seed(3);
    const auto net = std::make_shared<Cloned<PlainImpl>>();
    const DataParallel model(
        net, slices(devices),
        DataParallelOptions().shards(2).intra_op_threads(1));
    torch::optim::SGD sgd(model->parameters(),
                          torch::optim::SGDOptions(0.05).momentum(0.9));
    auto fused = optim::fuse(sgd, model);
    const auto loss = [](const Tensor& out, const Tensor& labels) {
      return torch::nn::functional::cross_entropy(out, labels);
    };
    const Tensor x = torch::randn({32, kIn});
    const Tensor labels = torch::randint(kClasses, {32});
    const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
    for (int step = 0; step < 8; ++step) {
      if (step == 1 || step == 5) {
        sgd.zero_grad();
        loss(model->forward(x), labels).backward();
        fused.step();
        fused.zero_grad();
      } else {
        model->train_step(x, labels, loss, sgd);
      }
    }
    return testing_nets::bytes_of(*net);
  };
  EXPECT_EQ(train_both(2), train_both(1));
}

// LibTorch keeps the casts of the first step until the scope ends.
TEST(AutocastAroundALoop, SeesTheWeightsOfEachStep) {
  const auto train_in = [](bool one_scope, bool fuses) {
    const auto net =
        testing_ddp::filled(std::make_shared<testing_ddp::NetImpl>());
    const DistributedDataParallel model(net, ProcessGroup());
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.5));
    auto fused = optim::fuse(sgd, model);
    std::optional<AutocastScope> scope;
    for (int step = 0; step < 4; ++step) {
      if (!one_scope || step == 0) {
        scope.emplace(torch::kCPU, torch::kBFloat16);
      }
      sgd.zero_grad();
      testing_ddp::loss_of(model->forward(testing_ddp::inputs(8 * step, 8)),
                           testing_ddp::targets(8 * step, 8))
          .backward();
      if (fuses) {
        fused.step();
      } else {
        sgd.step();
      }
      if (!one_scope) scope.reset();
    }
    return testing_nets::bytes_of(*net);
  };
  for (const bool fuses : {false, true}) {
    EXPECT_EQ(train_in(true, fuses), train_in(false, fuses)) << fuses;
  }
}

// Ranks that share memory have one copy for all of them. Over tcp, each rank
// leaves the casts to autocast.
class CastWeightsOfRanks : public testing_ddp::OnBackends {};
INSTANTIATE_TEST_SUITE_P(Backends, CastWeightsOfRanks,
                         testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

/// Trains on this rank's part of each batch, and returns the bytes of the
/// parameters.
std::string bytes_after_training(const ProcessGroup& world) {
  constexpr int64_t kBatch = 8;
  const int64_t own = kBatch / world.size();
  const auto net =
      testing_ddp::filled(std::make_shared<testing_ddp::NetImpl>());
  const OverRanks model(
      net, {Device{}},
      DataParallelOptions().process_group(world).shards(2).intra_op_threads(1));
  // The blocks of an optimizer need not be in the order of the module's.
  std::vector<Tensor> parameters = net->parameters();
  std::reverse(parameters.begin(), parameters.end());
  torch::optim::SGD sgd(parameters,
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 8; ++step) {
    if (step == 4) {
      model->unshare_parameters();
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.mul_(0.5);
    }
    const int64_t first = (step * kBatch) + (world.rank() * own);
    const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
    model->train_step(testing_ddp::inputs(first, own),
                      testing_ddp::targets(first, own), testing_ddp::loss_of,
                      sgd,
                      TrainStepOptions().clip_grad_norm(step == 6 ? 0.01 : 0));
  }
  return testing_nets::bytes_of(*net);
}

TEST_P(CastWeightsOfRanks, HaveTheBitsOfOneDevice) {
  const std::string expected = bytes_after_training(ProcessGroup());
  run_on_ranks(2, [&](const ProcessGroup& world) {
    EXPECT_EQ(bytes_after_training(world), expected);
  });
}

TEST(BFloat16Loops, RoundAsTensorsDo) {
  const auto count = int64_t{1} << 20;
  torch::manual_seed(5);
  // Random bits: subnormal numbers, infinities and NaNs are among them.
  Tensor bits = torch::randint(std::numeric_limits<int32_t>::min(),
                               std::numeric_limits<int32_t>::max(), {count},
                               torch::kInt32);
  bits[0] = 0x3f808000;  // a tie, which is rounded down to even
  bits[1] = 0x3f818000;  // a tie, which is rounded up to even
  const Tensor values = bits.view(torch::kFloat);
  const Tensor expected = values.to(torch::kBFloat16);
  Tensor got = torch::empty({count}, torch::kBFloat16);
  narrow(values.const_data_ptr<float>(), got.mutable_data_ptr<c10::BFloat16>(),
         count);
  const Tensor is_number = values.isnan().logical_not();
  EXPECT_TRUE(
      torch::equal(got.view(torch::kInt16).masked_select(is_number),
                   expected.view(torch::kInt16).masked_select(is_number)));
  EXPECT_TRUE(torch::equal(got.isnan(), expected.isnan()));
  EXPECT_TRUE(is_narrowed(values.const_data_ptr<float>(),
                          got.const_data_ptr<c10::BFloat16>(), count));
  got[count - 1] = got[count - 1].item<float>() == 1 ? 2 : 1;
  EXPECT_FALSE(is_narrowed(values.const_data_ptr<float>(),
                           got.const_data_ptr<c10::BFloat16>(), count));
}

TEST(BFloat16Loops, AddInFloat) {
  const int64_t count = 1003;
  const Tensor a = torch::randn({count}).to(torch::kBFloat16);
  const Tensor b = torch::randn({count}).to(torch::kBFloat16);
  Tensor sum = torch::empty({count});
  add_wide(a.const_data_ptr<c10::BFloat16>(), b.const_data_ptr<c10::BFloat16>(),
           sum.mutable_data_ptr<float>(), count);
  EXPECT_TRUE(torch::equal(sum, a.to(torch::kFloat) + b.to(torch::kFloat)));
  add_wide(sum.const_data_ptr<float>(), b.const_data_ptr<c10::BFloat16>(),
           sum.mutable_data_ptr<float>(), count);
  EXPECT_TRUE(torch::equal(
      sum, a.to(torch::kFloat) + b.to(torch::kFloat) + b.to(torch::kFloat)));
  Tensor wide = torch::empty({count});
  widen(a.const_data_ptr<c10::BFloat16>(), wide.mutable_data_ptr<float>(),
        count);
  EXPECT_TRUE(torch::equal(wide, a.to(torch::kFloat)));
}

}  // namespace
}  // namespace lockstep::cast_weights_test
