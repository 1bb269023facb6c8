#pragma once

#include <exception>
#include <string>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/device/device.h"
#include "tests/parallel/tested_devices.h"

// Small modules and data that the tests of this layer share.
namespace lockstep::testing_nets {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module(
        "conv", torch::nn::Conv2d(
                    torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    drop = register_module("drop", torch::nn::Dropout(drop_probability));
    fc = register_module("fc", torch::nn::Linear(8, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::relu(norm(conv(x))).mean({2, 3});
    return fc(drop(y));
  }
  double drop_probability = 0.25;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Net);

inline torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 4));
}

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  MlpImpl() { reset(); }
  void reset() override { net = register_module("net", mlp()); }
  torch::Tensor forward(const torch::Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net{nullptr};
};
TORCH_MODULE(Mlp);

/// Returns `tensor`, or a module, on the device of this thread.
inline torch::Tensor at_home(const torch::Tensor& tensor) {
  return tensor.to(tested::home());
}
template <class M>
M at_home(M module) {
  module->to(tested::home());
  return module;
}

/// `k` slices, on however few cores this machine has.
inline std::vector<Device> slices(int k) {
  return devices(std::to_string(k) + "xcpu", Duplicates::kRefuse,
                 Oversubscription::kAllow);
}

inline torch::Tensor cross_entropy(const torch::Tensor& output,
                                   const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

/// The parameters' and buffers' bytes, one after another.
inline std::string bytes_of(const torch::nn::Module& module) {
  std::string bytes;
  const auto add = [&](const torch::Tensor& tensor) {
    const auto plain = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(plain.const_data_ptr()),
                 plain.nbytes());
  };
  for (const auto& tensor : module.parameters()) add(tensor);
  for (const auto& tensor : module.buffers()) add(tensor);
  return bytes;
}

/// Returns the message of the exception that `act` throws.
template <class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

}  // namespace lockstep::testing_nets
