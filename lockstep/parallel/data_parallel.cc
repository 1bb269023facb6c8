#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

using torch::jit::Module;

DataParallelImpl<Module>::DataParallelImpl(Module module,
                                           std::vector<Device> devices,
                                           DataParallelOptions options)
    : module_(std::move(module)),
      group_(std::make_shared<ReplicaGroup>(
          [script = module_] { return handle_of(script); },
          [script = module_] { return handle_of(clone_module(script)); },
          std::move(devices), std::move(options))) {}

c10::IValue DataParallelImpl<Module>::forward(
    const std::vector<c10::IValue>& inputs) {
  return group_->forward(inputs);
}

StepResult DataParallelImpl<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, optim::Optimizer& optimizer,
    const TrainStepOptions& options) {
  return group_->train_step(inputs, target, loss, &optimizer, options);
}

StepResult DataParallelImpl<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, torch::optim::Optimizer& optimizer,
    const TrainStepOptions& options) {
  return group_->train_step(inputs, target, loss, optimizer, options);
}

StepResult DataParallelImpl<Module>::train_step(
    const std::vector<c10::IValue>& inputs, const c10::IValue& target,
    const ShardLoss& loss, const TrainStepOptions& options) {
  return group_->train_step(inputs, target, loss, nullptr, options);
}

std::vector<torch::Tensor> DataParallelImpl<Module>::parameters() const {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module_.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
