// Modules and calls that can't be split or nested. Each error names the cause
// and a way that works, which is tried here.
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::nesting_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::gradients_of;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::targets;
using testing_nets::error_of;
using testing_nets::slices;
using torch::Tensor;

using testing_ddp::NetImpl;
std::shared_ptr<NetImpl> new_net() {
  return testing_ddp::filled(std::make_shared<NetImpl>());
}

// Wrappers in modules that are wrapped.

constexpr const char* kIsWrapped = "is wrapped, and the wrapper is used in";
constexpr const char* kOutermost =
    "expected one wrapper, around the outermost module";

/// Has a wrapper of another module.
struct CallerImpl : torch::nn::Cloneable<CallerImpl> {
  explicit CallerImpl(const DataParallel<NetImpl>& wrapper_)
      : wrapper(wrapper_) {
    reset();
  }
  void reset() override {
    head = register_module("head", torch::nn::Linear(3, 3));
  }
  Tensor forward(const Tensor& x) { return head(wrapper->forward(x)); }
  DataParallel<NetImpl> wrapper;
  torch::nn::Linear head{nullptr};
};

/// The way that works: the inner module itself.
struct OuterImpl : torch::nn::Cloneable<OuterImpl> {
  OuterImpl() { reset(); }
  void reset() override {
    inner = register_module("inner", std::make_shared<NetImpl>());
    head = register_module("head", torch::nn::Linear(3, 3));
  }
  Tensor forward(const Tensor& x) { return head(inner->forward(x)); }
  std::shared_ptr<NetImpl> inner;
  torch::nn::Linear head{nullptr};
};

TEST(Nesting, OfAWrapperInAForwardIsNamed) {
  const DataParallel inner(new_net(), slices(2));
  const auto outer = std::make_shared<CallerImpl>(inner);
  const DataParallel model(outer, slices(2));
  for (int attempt = 0; attempt < 20; ++attempt) {
    const std::string error = error_of([&] { model->forward(inputs(0, 4)); });
    EXPECT_PRED2(contains, error, kIsWrapped);
    EXPECT_PRED2(contains, error, kOutermost);
    EXPECT_PRED2(contains, error, "CallerImpl");
    EXPECT_PRED2(contains, error, "NetImpl");
  }
  EXPECT_PRED2(contains, error_of([&] {
                 model->train_step(inputs(0, 4), targets(0, 4), loss_of);
               }),
               kIsWrapped);
  try {
    model->forward(inputs(0, 4));
  } catch (const std::exception& error) {
    EXPECT_EQ(exit_code_of(error), kExitTrainingFailed);
  }
  // The inner wrapper is as it was.
  EXPECT_EQ(inner->forward(inputs(0, 4)).size(0), 4);
}

TEST(Nesting, OfTheInnerModuleItselfWorks) {
  const auto plain = testing_ddp::filled(std::make_shared<OuterImpl>());
  loss_of(plain->forward(inputs(0, 4)), targets(0, 4)).backward();
  const auto net = testing_ddp::filled(std::make_shared<OuterImpl>());
  const DataParallel model(net, slices(2));
  model->train_step(inputs(0, 4), targets(0, 4), loss_of);
  check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
}

/// Wraps a part of itself.
struct SelfWrapperImpl : torch::nn::Cloneable<SelfWrapperImpl> {
  SelfWrapperImpl() { reset(); }
  void reset() override {
    part = register_module("part", std::make_shared<NetImpl>());
    wrapper = std::make_shared<DataParallel<NetImpl>>(part, slices(2));
  }
  Tensor forward(const Tensor& x) { return (*wrapper)->forward(x); }
  std::shared_ptr<NetImpl> part;
  std::shared_ptr<DataParallel<NetImpl>> wrapper;
};

TEST(Nesting, OfAWrapperThatAReplicaMakesIsNamed) {
  const auto net = std::make_shared<SelfWrapperImpl>();
  const std::string error =
      error_of([&] { DataParallel model(net, slices(2)); });
  EXPECT_PRED2(contains, error, kIsWrapped);
  EXPECT_PRED2(contains, error, "SelfWrapperImpl");
  EXPECT_PRED2(contains, error, "[misuse]");
}

/// Trains another module in its forward.
struct TeacherImpl : torch::nn::Cloneable<TeacherImpl> {
  explicit TeacherImpl(const DataParallel<NetImpl>& wrapper_)
      : wrapper(wrapper_) {
    reset();
  }
  void reset() override {
    head = register_module("head", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x) {
    wrapper->train_step(x, torch::zeros({x.size(0)}, torch::kLong), loss_of);
    return head(x);
  }
  DataParallel<NetImpl> wrapper;
  torch::nn::Linear head{nullptr};
};

TEST(Nesting, OfATrainStepInAForwardIsNamed) {
  const DataParallel inner(new_net(), slices(2));
  const DataParallel model(std::make_shared<TeacherImpl>(inner), slices(2));
  EXPECT_PRED2(contains, error_of([&] { model->forward(inputs(0, 4)); }),
               kIsWrapped);
}

TEST(Nesting, OfAModelInItsOwnLossIsNamed) {
  for (const int devices : {1, 2}) {
    const DataParallel model(new_net(), slices(devices));
    const auto loss = [&](const Tensor& output, const Tensor& target) {
      return loss_of(output, target) + model->forward(inputs(0, 2)).mean();
    };
    EXPECT_PRED2(contains, error_of([&] {
                   model->train_step(inputs(0, 4), targets(0, 4), loss);
                 }),
                 kIsWrapped);
  }
}

TEST(Nesting, OfATeachersOutputInTheTargetWorks) {
  const DataParallel teacher(new_net(), slices(2));
  const auto loss = [](const Tensor& output,
                       const std::tuple<Tensor, Tensor>& target) {
    return loss_of(output, std::get<0>(target)) +
           torch::mse_loss(output, std::get<1>(target));
  };
  const auto taught = [&](const Tensor& x) {
    const torch::NoGradGuard no_grad;
    return teacher->forward(x).detach() + 1;
  };
  const Tensor x = inputs(0, 4);
  const auto plain = new_net();
  loss(plain->forward(x), {targets(0, 4), taught(x)}).backward();
  const auto net = new_net();
  const DataParallel student(net, slices(2));
  student->train_step(x, std::make_tuple(targets(0, 4), taught(x)), loss);
  check_same(gradients_of(*net), gradients_of(*plain), 1e-5);
}

TEST(Nesting, OnOneDeviceWorks) {
  const DataParallel inner(new_net(), slices(2));
  const auto outer = std::make_shared<CallerImpl>(inner);
  const DataParallel model(outer, slices(1));
  EXPECT_TRUE(model->forward(inputs(0, 4))
                  .allclose(outer->head(inner->forward(inputs(0, 4)))));
}

// LBFGS.

TEST(Lbfgs, IsRefusedInATrainStepAndWorksWithAClosure) {
  const auto plain = new_net();
  const auto net = new_net();
  const DataParallel model(net, slices(2));
  const auto options = torch::optim::LBFGSOptions(0.05).max_iter(3);
  torch::optim::LBFGS plain_lbfgs(plain->parameters(), options);
  torch::optim::LBFGS lbfgs(net->parameters(), options);
  const Tensor x = inputs(0, 8);
  const Tensor y = targets(0, 8);
  const auto step = [&] { model->train_step(x, y, loss_of, lbfgs); };
  EXPECT_EQ(error_code_of(step), ErrorCode::kBadOptimizer);
  EXPECT_PRED2(contains, error_of(step), "optimizer.step([&] {");
  for (int i = 0; i < 3; ++i) {
    lbfgs.step([&] {
      lbfgs.zero_grad();
      const Tensor loss = loss_of(model->forward(x), y);
      loss.backward();
      return loss;
    });
    plain_lbfgs.step([&] {
      plain_lbfgs.zero_grad();
      const Tensor loss = loss_of(plain->forward(x), y);
      loss.backward();
      return loss;
    });
  }
  check_same(net->parameters(), plain->parameters(), 1e-4);
}

// Batch normalisation.

struct NormalisedImpl : torch::nn::Cloneable<NormalisedImpl> {
  NormalisedImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  Tensor forward(const Tensor& x) { return norm(fc(x)); }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(BatchNormOfOneSample, SaysWhatToDo) {
  const auto net = std::make_shared<NormalisedImpl>();
  const DataParallel model(net, slices(2));
  const std::string forward = error_of([&] { model->forward(inputs(0, 3)); });
  EXPECT_PRED2(contains, forward, "replica 1 on cpu:1 failed");
  EXPECT_PRED2(contains, forward, "2 samples or more");
  const std::string step = error_of(
      [&] { model->train_step(inputs(0, 3), targets(0, 3), loss_of); });
  EXPECT_PRED2(contains, step, "drop_last");
  EXPECT_EQ(model->forward(inputs(0, 4)).size(0), 4);
  const DataParallel fewer(net, slices(1));
  EXPECT_EQ(fewer->forward(inputs(0, 3)).size(0), 3);
}

}  // namespace
}  // namespace lockstep::nesting_test
