#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "tests/parallel/nets.h"

// Modules and losses that break a contract, for the tests of the first step.
namespace lockstep::first_step_test {

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

inline Tensor images() {
  torch::manual_seed(11);
  return torch::randn({12, 6});
}
inline Tensor classes() {
  torch::manual_seed(12);
  return torch::randint(4, {12});
}
inline Tensor mean_square(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, target);
}

inline std::string text_of_error(const std::function<void()>& act,
                                 ErrorCode expected_code) {
  try {
    act();
  } catch (const ParallelError& error) {
    EXPECT_EQ(error.code(), expected_code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline Tensor summed(const Tensor& output, const Tensor& target) {
  return torch::mse_loss(output, torch::one_hot(target, 4).to(output.dtype()),
                         torch::Reduction::Sum);
}
inline Tensor ignoring(const Tensor& output, const Tensor& target) {
  // Class 0 stands for what is to be ignored.
  return torch::nn::functional::cross_entropy(
      output, target,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(0));
}
/// Compares all samples of a batch with each other, as in InfoNCE.
inline Tensor contrastive(const Tensor& output, const Tensor&) {
  return torch::nn::functional::cross_entropy(output.matmul(output.t()),
                                              torch::arange(output.size(0)));
}
inline Tensor drawn(const Tensor& output, const Tensor& target) {
  return torch::nn::functional::cross_entropy(
      torch::dropout(output, 0.5, /*train=*/true), target);
}
inline Tensor uneven_targets() {
  // The first half has more ignored targets than the second.
  return torch::tensor({0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 1, 2});
}

using LossFunction = Tensor (*)(const Tensor&, const Tensor&);
struct LossCase {
  LossFunction loss;
  const char* advice;
};
inline const std::vector<LossCase>& refused_losses() {
  static const std::vector<LossCase> cases{
      {summed, "LossReduction::kSum"},
      {ignoring, "lockstep::cross_entropy"},
      {contrastive, "call forward()"}};
  return cases;
}

}  // namespace lockstep::first_step_test
