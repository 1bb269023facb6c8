// Training on the simulated accelerator has the bits of training on slices.
#include "lockstep/parallel/data_parallel.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/device/device.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/module/replicate.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace {

using torch::Tensor;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    fc = register_module("fc", torch::nn::Linear(6 * 36, 10));
  }
  Tensor forward(Tensor x) {
    x = norm(conv(x)).relu();
    return fc(dropout(x.flatten(1)));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

/// Returns a checksum of the parameters after some steps on `list`, always with
/// 4 shards.
std::string digest(const std::string& list) {
  torch::manual_seed(3);
  const auto devices =
      lockstep::devices(list, Duplicates::kRefuse, Oversubscription::kAllow);
  Net net;
  lockstep::to(*net, devices.front());
  DataParallel model(net.ptr(), devices,
                     DataParallelOptions().shards(4).intra_op_threads(1));
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto home = torch_device(devices.front());
  torch::manual_seed(4);
  for (int step = 0; step < 5; ++step) {
    const Tensor x = torch::randn({8, 3, 8, 8}).to(home);
    const Tensor y = torch::randint(10, {8}).to(home);
    model->train_step(
        x, y,
        [](const Tensor& output, const Tensor& target) {
          return torch::cross_entropy_loss(output, target);
        },
        sgd);
  }
  std::string text;
  for (const Tensor& parameter : model->parameters()) {
    text += checksum_of(parameter.detach().cpu());
  }
  return text;
}

TEST(DataParallelOnAccelerator, HasTheBitsOfSlices) {
  const std::string expected = digest("2xcpu");
  EXPECT_EQ(digest("sim:0"), expected);
  EXPECT_EQ(digest("2xsim"), expected);
  EXPECT_EQ(digest("4xsim"), expected);
}

}  // namespace
}  // namespace lockstep::sim
