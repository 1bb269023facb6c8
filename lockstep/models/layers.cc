#include "lockstep/models/layers.h"

#include "lockstep/models/parameter_budget.h"

namespace lockstep::models {
namespace {

// Uses set_data, because the module has already registered `parameter`.
void reshape(torch::Tensor& parameter, torch::IntArrayRef shape) {
  parameter.set_data(torch::empty(shape, parameter.options()));
}

void copy_state(const torch::Tensor& from, torch::Tensor& to,
                const std::optional<torch::Device>& device) {
  const torch::NoGradGuard no_grad;
  to.set_data(from.detach().to(device.value_or(from.device()),
                               /*non_blocking=*/false, /*copy=*/true));
  to.set_requires_grad(from.requires_grad());
}

}  // namespace

// The constructors of torch::nn always initialise. A layer with one weight
// draws only one random number, and is then resized to its real shape.

torch::nn::Linear linear(int64_t in_features, int64_t out_features, Init init) {
  ParameterBudget::spend({out_features, in_features});
  ParameterBudget::spend({out_features});
  if (init == Init::kRandom) {
    return torch::nn::Linear(in_features, out_features);
  }
  // Without outputs, not even one number is drawn.
  torch::nn::Linear layer(1, 0);
  layer->options.in_features(in_features).out_features(out_features);
  reshape(layer->weight, {out_features, in_features});
  reshape(layer->bias, {out_features});
  return layer;
}

torch::nn::Conv2d conv2d(const torch::nn::Conv2dOptions& options, Init init) {
  ParameterBudget::spend({options.out_channels(), options.in_channels(),
                          options.kernel_size()->at(0),
                          options.kernel_size()->at(1)});
  if (init == Init::kRandom) return torch::nn::Conv2d(options);
  auto small = options;
  small.in_channels(1).out_channels(1).kernel_size(1);
  torch::nn::Conv2d layer(small);
  const auto kernel = options.kernel_size();
  layer->options.in_channels(options.in_channels())
      .out_channels(options.out_channels())
      .kernel_size(kernel);
  reshape(layer->weight, {options.out_channels(), options.in_channels(),
                          kernel->at(0), kernel->at(1)});
  return layer;
}

std::shared_ptr<torch::nn::Module> with_state_of(
    const torch::nn::Module& from, std::shared_ptr<torch::nn::Module> to,
    const std::optional<torch::Device>& device) {
  const auto copy_all = [&](const auto& sources, auto targets) {
    TORCH_INTERNAL_ASSERT(sources.size() == targets.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      copy_state(sources[i], targets[i], device);
    }
  };
  copy_all(from.parameters(), to->parameters());
  copy_all(from.buffers(), to->buffers());
  to->train(from.is_training());
  const auto sources = from.modules(/*include_self=*/false);
  const auto targets = to->modules(/*include_self=*/false);
  TORCH_INTERNAL_ASSERT(sources.size() == targets.size());
  // Parents come first, so a child's own mode is set last.
  for (size_t i = 0; i < sources.size(); ++i) {
    targets[i]->train(sources[i]->is_training());
  }
  return to;
}

}  // namespace lockstep::models
