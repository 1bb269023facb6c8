#include "tests/differential/data_parallel_strategy.h"

#include "lockstep/base/chunk.h"

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

std::vector<Device> devices_of(int64_t count, const World& world) {
  if (world.size() > 1) {
    return std::vector<Device>(static_cast<size_t>(count), Device{});
  }
  return lockstep::devices("cpu:" + std::to_string(count), Duplicates::kRefuse,
                           Oversubscription::kAllow);
}

DataParallelOptions options_of(const Case& of, const World& world) {
  return DataParallelOptions()
      .shards(of.shards)
      .seed(of.seed)
      .intra_op_threads(1)
      .world(world);
}

}  // namespace

DataParallelStrategy::DataParallelStrategy(
    std::shared_ptr<InterpretedModule> module, int64_t devices,
    const World& world)
    : Strategy(module),
      world_(world),
      model_(module, devices_of(devices, world),
             options_of(*module->definition, world)) {}

void DataParallelStrategy::make_optimizer() {
  const Case& of = definition();
  if (!updates()) return;
  const optim::StateFactory make_state = [this](const Tensor& parameter) {
    return model_->make_state(parameter);
  };
  // As users write it: what is registered twice is there twice.
  auto parameters = module().parameters();
  if (of.optimizer == "adamw") {
    optimizer_ =
        optim::adamw(std::move(parameters), {.lr = of.rate,
                                             .eps = 1e-3,
                                             .weight_decay = of.weight_decay,
                                             .make_state = make_state});
  } else {
    optimizer_ =
        optim::sgd(std::move(parameters), {.lr = of.rate,
                                           .momentum = of.momentum,
                                           .weight_decay = of.weight_decay,
                                           .nesterov = of.nesterov,
                                           .make_state = make_state});
  }
}

void DataParallelStrategy::set_rate(double rate) {
  if (optimizer_) optimizer_->set_lr(rate);
}

StepResult DataParallelStrategy::step(const Batch& batch, double clip,
                                      bool updates) {
  const Case& of = definition();
  const std::vector<Tensor> parameters = module().unique_parameters();
  const auto loss = [&of, parameters](const IValue& outputs,
                                      const IValue& target) {
    return loss_of(of, outputs, target, parameters, {}, {});
  };
  const Batch own = own_part(batch);
  const int64_t total = world_.size() > 1 ? batch.samples : -1;
  if (!updates) {
    return model_->train_step(own.nested_inputs(of), own.nested_target(), loss,
                              TrainStepOptions().batch(total));
  }
  return model_->train_step(
      own.nested_inputs(of), own.nested_target(), loss, *optimizer_,
      TrainStepOptions().clip_grad_norm(clip).batch(total));
}

Strategy::Step DataParallelStrategy::backward(const Batch& batch) {
  const Case& of = definition();
  if (of.mode == "forward") {
    return backward_of(of, module(), model_->forward(batch.nested_inputs(of)),
                       batch);
  }
  const StepResult result = step(batch, 0, false);
  return {.loss = result.loss, .is_finite = result.is_finite};
}

Strategy::Step DataParallelStrategy::train(const Batch& batch, double clip) {
  const StepResult result = step(batch, clip, true);
  return {.loss = result.loss,
          .norm = result.gradient_norm,
          .is_finite = result.is_finite};
}

IValue DataParallelStrategy::forward(const Batch& batch) {
  return model_->forward(batch.nested_inputs(definition()));
}

Batch DataParallelStrategy::own_part(const Batch& batch) const {
  if (world_.size() == 1) return batch;
  const auto shards =
      shards_of_worker(world_.rank(), world_.size(), definition().shards);
  const auto samples = samples_of(shards, batch.samples, definition().shards);
  return batch.part(samples.first, samples.count()).detached();
}

}  // namespace lockstep::differential
