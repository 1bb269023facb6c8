// Tests changes to a module after it was wrapped, compared with the module
// itself.
#include <sstream>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/module/replica.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/nets.h"

namespace lockstep::following_test {
namespace {

using testing_nets::error_of;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::Net;
using testing_nets::slices;
using torch::Tensor;

std::vector<Tensor> gradients_after(const torch::nn::Module& module,
                                    const Tensor& loss) {
  for (auto& p : module.parameters()) p.mutable_grad().reset();
  loss.backward();
  std::vector<Tensor> gradients;
  for (const auto& p : module.parameters()) gradients.push_back(p.grad());
  return gradients;
}

/// Forward and backward of the model are those of its module.
template <class Model>
void expect_followed(const Model& model, const Tensor& x) {
  const auto net = model->module();
  const Tensor got = model->forward(x);
  const auto got_gradients = gradients_after(*net, got.square().sum());
  const Tensor expected = net->forward(x);
  const auto gradients = gradients_after(*net, expected.square().sum());
  EXPECT_TRUE(got.allclose(expected, 1e-5, 1e-6));
  for (size_t p = 0; p < gradients.size(); ++p) {
    EXPECT_TRUE(got_gradients[p].allclose(gradients[p], 1e-4, 1e-5)) << p;
  }
}

// A replica on a second GPU has memory of its own; here one on the host has.
class OwnMemory : public testing::Test {
 protected:
  Replica replica_of(Mlp& net) {
    ModuleHandle handle = handle_of(clone_module(*net));
    const auto copy = std::dynamic_pointer_cast<MlpImpl>(handle.module);
    handle.forward = [copy](const std::vector<c10::IValue>& inputs) {
      return c10::IValue(copy->forward(inputs[0].toTensor()));
    };
    return Replica(std::move(handle), handle_of(net.ptr()), Device{},
                   Storage::kOwn, Storage::kOwn);
  }

  template <class Step>
  void expect_seen(const Step& step) {
    Mlp net;
    Replica replica = replica_of(net);
    const Tensor x = torch::randn({4, 6});
    for (int i = 0; i < 2; ++i) {
      net->zero_grad();
      net->forward(x).sum().backward();
      step(net);
      replica.refresh(handle_of(net.ptr()));
      EXPECT_TRUE(
          replica.module().forward({x}).toTensor().equal(net->forward(x)));
    }
  }
};

TEST_F(OwnMemory, SeesTheUpdatesOfOptimizers) {
  expect_seen(
      [](Mlp& net) { torch::optim::SGD(net->parameters(), 0.1).step(); });
  expect_seen(
      [](Mlp& net) { torch::optim::AdamW(net->parameters(), 0.1).step(); });
}

TEST_F(OwnMemory, SeesWhatIsWrittenBelowTheVersionCounter) {
  expect_seen([](Mlp& net) { net->parameters()[0].data().mul_(2); });
}

TEST_F(OwnMemory, RefusesABackwardOverAChangeOfTheOriginal) {
  Mlp net;
  Replica replica = replica_of(net);
  const Tensor loss = replica.module()
                          .forward({torch::randn({4, 6})})
                          .toTensor()
                          .square()
                          .sum();
  {
    torch::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.mul_(2);
  }
  EXPECT_PRED2(contains, error_of([&] { loss.backward(); }),
               "modified by an inplace operation");
}

TEST(Following, RefusesABackwardOverATrainStep) {
  for (const int k : {1, 2}) {
    Mlp net;
    const DataParallel model(net, slices(k));
    const Tensor x = torch::randn({4, 6});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const Tensor loss = model->forward(x).square().sum();
    const Tensor module_loss = net->forward(x).square().sum();
    model->train_step(x, torch::randint(4, {4}), testing_nets::cross_entropy,
                      sgd);
    for (const Tensor& stale : {loss, module_loss}) {
      EXPECT_PRED2(contains, error_of([&] { stale.backward(); }),
                   "modified by an inplace operation");
    }
  }
}

TEST(Following, SeesTheOptionsOfItsModules) {
  Net net;
  const DataParallel model(net, slices(2));
  net->norm->eval();
  net->drop->options.p(0);
  net->conv->options.padding(0);
  net->norm->options.eps(0.5);
  expect_followed(model, torch::randn({8, 3, 5, 5}));
}

struct ScaledImpl : torch::nn::Cloneable<ScaledImpl> {
  ScaledImpl() { reset(); }
  void reset() override {
    square = register_module("square", torch::nn::Linear(6, 6));
    head = register_module("head", torch::nn::Linear(6, 4));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = head(square(x)) * alpha;
    return is_shifted ? y + 1 : y;
  }
  bool is_shifted = false;
  double alpha = 1;
  torch::nn::Linear square{nullptr}, head{nullptr};
};
TORCH_MODULE(Scaled);

TEST(Following, SeesMembersThatAreNotRegistered) {
  for (const int k : {1, 2}) {
    Scaled net;
    const DataParallel model(net, slices(k));
    const Tensor x = torch::randn({8, 6});
    expect_followed(model, x);
    for (const double alpha : {3., 0.25}) {
      net->alpha = alpha;
      expect_followed(model, x);
    }
    net->is_shifted = true;
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(model->forward(x).allclose(net->forward(x), 1e-5, 1e-6));
  }
}

/// Trains with a member that changes before each step, as one does to lower a
/// temperature.
template <class Step>
void lower_alpha(Scaled net, const Step& step) {
  for (int i = 0; i < 5; ++i) {
    net->alpha = 1.0 / (1 + i);
    torch::manual_seed(i);
    step(torch::randn({8, 6}), torch::randint(4, {8}));
  }
}

TEST(Following, TrainsWithMembersThatChangeInEachStep) {
  Scaled initial;
  const auto copy = [&] {
    return Scaled(std::dynamic_pointer_cast<ScaledImpl>(initial->clone()));
  };
  Scaled expected = copy();
  torch::optim::SGD sgd(expected->parameters(), 0.1);
  lower_alpha(expected, [&](const Tensor& x, const Tensor& y) {
    sgd.zero_grad();
    testing_nets::cross_entropy(expected->forward(x), y).backward();
    sgd.step();
  });
  for (const int k : {1, 2}) {
    Scaled net = copy();
    const DataParallel model(net, slices(k));
    torch::optim::SGD wrapped_sgd(net->parameters(), 0.1);
    lower_alpha(net, [&](const Tensor& x, const Tensor& y) {
      model->train_step(x, y, testing_nets::cross_entropy, wrapped_sgd);
    });
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      EXPECT_TRUE(
          net->parameters()[p].allclose(expected->parameters()[p], 1e-4, 1e-6))
          << k << " slices, parameter " << p;
    }
  }
}

// Only some of the samples are as large.
struct ClippedImpl : torch::nn::Cloneable<ClippedImpl> {
  ClippedImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(6, 4)); }
  Tensor forward(const Tensor& x) { return fc(x.clamp(-limit, limit)); }
  double limit = 1;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Clipped);

TEST(Following, SeesMembersThatOnlyOneShardDependsOn) {
  Clipped net;
  const DataParallel model(net, slices(2));
  Tensor x = torch::full({8, 6}, 0.5);
  expect_followed(model, x);
  net->limit = 2;
  x[7] = 3;
  expect_followed(model, x);
}

TEST(Following, RefusesMembersThatNewReplicasDoNotHave) {
  for (const bool trains : {false, true}) {
    const auto net = std::make_shared<ScaledImpl>();
    const DataParallel<ScaledImpl> model(
        net, [] { return std::make_shared<ScaledImpl>(); }, slices(2));
    const Tensor x = torch::randn({8, 6}), y = torch::randint(4, {8});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto step = [&] {
      if (trains) {
        model->train_step(x, y, testing_nets::cross_entropy, sgd);
      } else {
        model->forward(x);
      }
    };
    step();
    net->alpha = 3;
    const std::string before = testing_nets::bytes_of(*net);
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_PRED2(contains, error_of(step), "call rebuild()") << trains;
    }
    EXPECT_EQ(testing_nets::bytes_of(*net), before);
    net->alpha = 1;
    EXPECT_NO_THROW(step());
  }
}

// The gradients are those of the forwards, as in plain LibTorch.
TEST(Following, KeepsForwardsFromBeforeAChangeOfAMember) {
  Scaled net;
  Scaled expected(std::dynamic_pointer_cast<ScaledImpl>(net->clone()));
  const DataParallel model(net, slices(2));
  const Tensor x = torch::randn({8, 6});
  const auto train = [&](Scaled& scaled, const auto& forward) {
    const Tensor before = forward();
    scaled->alpha = 3;
    (before.sum() + forward().square().sum()).backward();
  };
  train(net, [&] { return model->forward(x); });
  train(expected, [&] { return expected->forward(x); });
  for (size_t p = 0; p < net->parameters().size(); ++p) {
    EXPECT_TRUE(net->parameters()[p].grad().allclose(
        expected->parameters()[p].grad(), 1e-5, 1e-6))
        << p;
  }
}

// The module adds up the gradient of its weight in another order than the
// replica, which the first step accepts.
struct RepeatedImpl : torch::nn::Cloneable<RepeatedImpl> {
  RepeatedImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(6, 6));
    same = register_module("same", fc);
  }
  Tensor forward(const Tensor& x) { return same(fc(x).relu()) * alpha; }
  double alpha = 1;
  int64_t calls = 0;
  torch::nn::Linear fc{nullptr}, same{nullptr};
};
TORCH_MODULE(Repeated);

TEST(Following, AcceptsWhatTheFirstStepAccepts) {
  Repeated net;
  const DataParallel model(net, slices(2));
  torch::optim::SGD sgd(optim::unique(net->parameters()), 0.1);
  const auto loss = [&](const Tensor& output, const Tensor& y) {
    return (output - y).square().mean() + net->fc->weight.square().mean();
  };
  for (int i = 0; i < 4; ++i) {
    ++net->calls;
    if (i == 2) net->alpha = 0.5;
    EXPECT_NO_THROW(model->train_step(torch::randn({8, 6}),
                                      torch::randn({8, 6}), loss, sgd))
        << i;
  }
}

TEST(Following, SeesAReplacedModule) {
  Scaled net;
  const DataParallel model(net, slices(2));
  const Tensor x = torch::randn({8, 6});
  model->forward(x);
  net->head = net->replace_module("head", torch::nn::Linear(6, 9));
  expect_followed(model, x);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const Tensor before = net->head->weight.clone();
  model->train_step(x, torch::randint(9, {8}), testing_nets::cross_entropy,
                    sgd);
  EXPECT_FALSE(net->head->weight.equal(before));
}

TEST(Following, SeesParametersThatWereTransposed) {
  Scaled net;
  const DataParallel model(net, slices(2));
  const Tensor x = torch::randn({8, 6});
  expect_followed(model, x);
  net->square->weight.set_data(net->square->weight.detach().t());
  expect_followed(model, x);
}

TEST(Following, SeesWhatTorchLoadBrings) {
  Scaled net;
  const DataParallel model(net, slices(2));
  std::stringstream stream;
  torch::save(Scaled(), stream);
  torch::load(net, stream);
  expect_followed(model, torch::randn({8, 6}));
}

TEST(Following, RefusesABackwardWhoseReplicasAreGone) {
  Scaled net;
  const DataParallel model(net, slices(2));
  const Tensor x = torch::randn({8, 6});
  const Tensor loss = model->forward(x).sum();
  model->rebuild();
  model->forward(x);
  EXPECT_PRED2(contains, error_of([&] { loss.backward(); }),
               "[module-changed]");
}

struct OuterImpl : torch::nn::Cloneable<OuterImpl> {
  OuterImpl() { reset(); }
  void reset() override { inner = register_module("inner", Scaled()); }
  Tensor forward(const Tensor& x) { return inner(x); }
  Scaled inner{nullptr};
};
TORCH_MODULE(Outer);

TEST(Following, SeesMembersOfInnerModulesAfterARebuild) {
  Outer net;
  const DataParallel model(net, slices(2));
  net->inner->alpha = 3;
  model->rebuild();
  expect_followed(model, torch::randn({8, 6}));
}

/// Copies itself with another activation.
struct FickleImpl : torch::nn::Module {
  explicit FickleImpl(bool is_copy = false) {
    net = register_module(
        "net", is_copy ? torch::nn::Sequential(torch::nn::Linear(6, 4),
                                               torch::nn::Tanh())
                       : torch::nn::Sequential(torch::nn::Linear(6, 4),
                                               torch::nn::ReLU()));
  }
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>&) const override {
    return std::make_shared<FickleImpl>(true);
  }
  Tensor forward(const Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net{nullptr};
};

TEST(Following, RefusesACloneThatIsAnotherNetwork) {
  const auto net = std::make_shared<FickleImpl>();
  const std::string error =
      error_of([&] { DataParallel<FickleImpl> model(net, slices(2)); });
  EXPECT_PRED2(contains, error, "[not-cloneable]");
  EXPECT_PRED2(contains, error, "'net.1': torch::nn::ReLU");
  EXPECT_PRED2(contains, error, "'net.1': torch::nn::Tanh");
}

torch::jit::Module script() {
  torch::jit::Module part("part");
  part.register_attribute("training", c10::BoolType::get(), true);
  part.register_attribute("scale", c10::FloatType::get(), 2.0);
  part.define(R"(
    def forward(self, x):
      if self.training:
        return x * self.scale
      return x
  )");
  torch::jit::Module module("whole");
  module.register_parameter("w", torch::randn({3, 2}).requires_grad_(), false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("calls", c10::IntType::get(), 0);
  module.register_module("part", part);
  module.define(R"(
    def forward(self, x):
      self.calls += 1
      return self.part.forward(x @ self.w)
  )");
  return module;
}

void expect_followed(DataParallel<torch::jit::Module>& model,
                     const torch::jit::Module& module) {
  const Tensor x = torch::randn({5, 3});
  const Tensor got = model->forward({x}).toTensor();
  EXPECT_TRUE(got.allclose(module.deepcopy().forward({x}).toTensor()));
}

TEST(FollowingScript, SeesTheModeOfEverySubmodule) {
  torch::jit::Module module = script();
  DataParallel model(module, slices(2));
  expect_followed(model, module);
  torch::jit::Module part = module.attr("part").toModule();
  part.eval();
  expect_followed(model, module);
  EXPECT_TRUE(module.is_training());
  part.train();
  expect_followed(model, module);
}

TEST(FollowingScript, SeesPlainAttributes) {
  torch::jit::Module module = script();
  DataParallel model(module, slices(2));
  expect_followed(model, module);
  module.attr("part").toModule().setattr("scale", 5.0);
  expect_followed(model, module);
}

TEST(FollowingScript, SeesAReplacedParameter) {
  torch::jit::Module module = script();
  DataParallel model(module, slices(2));
  expect_followed(model, module);
  module.setattr("w", torch::randn({3, 2}).requires_grad_());
  expect_followed(model, module);
}

TEST(FollowingScript, KeepsWhatTheFirstShardCounts) {
  torch::jit::Module module = script();
  DataParallel model(module, slices(2));
  for (int i = 0; i < 3; ++i) model->forward({torch::randn({5, 3})});
  EXPECT_EQ(module.attr("calls").toInt(), 3);
}

}  // namespace
}  // namespace lockstep::following_test
