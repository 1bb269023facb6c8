#pragma once

#include <memory>
#include <string>

#include <torch/autograd.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

// The modules of pytorch_ddp.py, with the same names.
namespace lockstep::testing_parity {

constexpr int64_t kFeatures = 48;
constexpr int64_t kClasses = 4;

struct Net : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x, bool takes_detour) = 0;

 protected:
  torch::nn::Linear linear(const std::string& name, int64_t in, int64_t out) {
    return register_module(name, torch::nn::Linear(in, out));
  }
};

/// PowerSGD groups layers of the same shape. Here they are separated.
struct Mlp : Net {
  torch::Tensor forward(torch::Tensor x, bool /*takes_detour*/) override {
    for (auto* layer : {&first, &second, &third, &fourth, &fifth}) {
      x = torch::tanh((*layer)(x));
    }
    return last(x);
  }
  torch::nn::Linear first = linear("first", kFeatures, 16);
  torch::nn::Linear second = linear("second", 16, 16);
  torch::nn::Linear third = linear("third", 16, 24);
  torch::nn::Linear fourth = linear("fourth", 24, 16);
  torch::nn::Linear fifth = linear("fifth", 16, 16);
  torch::nn::Linear last = linear("last", 16, kClasses);
};

struct Conv : Net {
  torch::Tensor forward(torch::Tensor x, bool /*takes_detour*/) override {
    x = torch::relu(norm(conv(x.view({-1, 3, 4, 4}))));
    x = torch::relu(second_norm(second_conv(x)));
    return last(x.mean({2, 3}));
  }
  torch::nn::Conv2d convolution(const std::string& name, int64_t in) {
    const auto options =
        torch::nn::Conv2dOptions(in, 8, 3).padding(1).bias(false);
    return register_module(name, torch::nn::Conv2d(options));
  }
  torch::nn::Conv2d conv = convolution("conv", 3);
  torch::nn::BatchNorm2d norm =
      register_module("norm", torch::nn::BatchNorm2d(8));
  torch::nn::Conv2d second_conv = convolution("second_conv", 8);
  torch::nn::BatchNorm2d second_norm =
      register_module("second_norm", torch::nn::BatchNorm2d(8));
  torch::nn::Linear last = linear("last", 8, kClasses);
};

struct ChannelsLast : Conv {
  ChannelsLast() {
    for (auto& layer : {conv, second_conv}) {
      layer->weight.set_data(
          layer->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    }
  }
};

struct Branched : Net {
  torch::Tensor forward(torch::Tensor x, bool takes_detour) override {
    x = torch::tanh(first(x));
    if (takes_detour) x = x + torch::tanh(detour(x));
    return last(x);
  }
  torch::nn::Linear first = linear("first", kFeatures, 16);
  torch::nn::Linear detour = linear("detour", 16, 16);
  torch::nn::Linear never = linear("never", 16, 16);
  torch::nn::Linear last = linear("last", 16, kClasses);
};

struct Tied : Net {
  torch::Tensor forward(torch::Tensor x, bool /*takes_detour*/) override {
    x = torch::tanh(first(x));
    x = torch::tanh(inner(torch::tanh(inner(x))));
    return last(torch::nn::functional::linear(x, inner->weight.t()));
  }
  torch::nn::Linear first = linear("first", kFeatures, 16);
  torch::nn::Linear inner = linear("inner", 16, 16);
  torch::nn::Linear last = linear("last", 16, kClasses);
};

/// A part of it is computed again in the backward, and used twice.
struct Checkpointed : Net {
  torch::Tensor part(const torch::Tensor& x) {
    return torch::tanh(more(torch::tanh(inner(x))));
  }
  torch::Tensor forward(torch::Tensor x, bool takes_detour) override;

  torch::nn::Linear first = linear("first", kFeatures, 16);
  torch::nn::Linear inner = linear("inner", 16, 16);
  torch::nn::Linear more = linear("more", 16, 16);
  torch::nn::Linear last = linear("last", 16, kClasses);
};

/// torch.utils.checkpoint(use_reentrant=True), which is missing in C++.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static torch::Tensor forward(Context* context, const torch::Tensor& x,
                               Checkpointed* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    return net->part(x);
  }
  static Tensors backward(Context* context, const Tensors& gradients) {
    auto* net = reinterpret_cast<Checkpointed*>(  // NOLINT
        context->saved_data["net"].toInt());
    const auto x =
        context->get_saved_variables()[0].detach().requires_grad_(true);
    const torch::AutoGradMode is_on(true);
    torch::autograd::backward({net->part(x)}, gradients);
    return {x.grad(), torch::Tensor()};
  }
};

inline torch::Tensor Checkpointed::forward(torch::Tensor x,
                                           bool /*takes_detour*/) {
  x = torch::tanh(first(x));
  for (int i = 0; i < 2; ++i) x = Checkpoint::apply(x, this);
  return last(x);
}

}  // namespace lockstep::testing_parity
