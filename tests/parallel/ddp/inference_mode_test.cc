// Evaluation of a DistributedDataParallel model under c10::InferenceMode.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using testing_ddp::check_same;
using testing_ddp::filled;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::targets;

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return second(torch::relu(norm(first(x))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

class DdpInferenceMode : public testing_ddp::OnBackends {};
INSTANTIATE_TEST_SUITE_P(Backends, DdpInferenceMode,
                         testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

TEST_P(DdpInferenceMode, LeavesNothingBehindThatTrainingCannotUse) {
  const auto trained = [](const ProcessGroup& world, bool evaluates) {
    auto net = filled(std::make_shared<NormedImpl>());
    auto model = DistributedDataParallel<NormedImpl>(net, world);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      if (evaluates) {
        const c10::InferenceMode inference;
        model->eval();
        const auto x = inputs(0, 4);
        TORCH_CHECK(torch::equal(model->forward(x), net->forward(x)));
        model->train();
      }
      const int first = step * 8 + world.rank() * 4;
      sgd.zero_grad();
      loss_of(model->forward(inputs(first, 4)), targets(first, 4)).backward();
      sgd.step();
    }
    return net->parameters();
  };
  run_on_ranks(2, [&](ProcessGroup world) {
    check_same(trained(world, true), trained(world, false));
  });
}

}  // namespace
}  // namespace lockstep
