#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

using torch::jit::Module;

Engine::Module engine_module(const Module& module) {
  return {.read = [module] { return handle_of(module); },
          .replicate = [module] { return handle_of(clone_module(module)); }};
}

StepResult ParallelModule<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, optim::Optimizer& optimizer,
    const TrainStepOptions& options) {
  return engine().train_step(inputs, target, loss, &optimizer, options);
}

StepResult ParallelModule<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, torch::optim::Optimizer& optimizer,
    const TrainStepOptions& options) {
  return engine().train_step(inputs, target, loss, optimizer, options);
}

StepResult ParallelModule<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, const TrainStepOptions& options) {
  return engine().train_step(inputs, target, loss, nullptr, options);
}

std::vector<torch::Tensor> ParallelModule<Module>::parameters() const {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module_.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
