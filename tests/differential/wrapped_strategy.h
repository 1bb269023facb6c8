#pragma once

#include <memory>

#include "lockstep/parallel/parallel_module.h"
#include "tests/differential/strategy.h"

namespace lockstep::differential {

/// Makes another module like it, as a user's factory does.
inline std::function<std::shared_ptr<InterpretedModule>()> factory_of(
    const std::shared_ptr<InterpretedModule>& module) {
  if (!module->definition->has_factory) return detail::cloner_of(module);
  return [definition = module->definition] {
    return std::make_shared<InterpretedModule>(definition);
  };
}

/// The common part of DataParallelStrategy and DdpStrategy. `Model` is the
/// wrapper, of an InterpretedModule.
template <class Model>
class WrappedStrategy : public Strategy {
 public:
  WrappedStrategy(std::shared_ptr<InterpretedModule> module,
                  const ProcessGroup& world, Model model)
      : Strategy(std::move(module)), world_(world), model_(std::move(model)) {}

  c10::IValue forward(const Batch& batch) override {
    return model_->forward(batch.nested_inputs(definition()));
  }
  Step backward(const Batch& batch, const std::string& loss) override {
    const Batch own = own_part(batch);
    return backward_of(definition(), loss, module(), forward(own), own);
  }
  Step train_step(const Batch& batch, const std::string& loss,
                  AnyOptimizer* optimizer, const StepOptions& given) override;

  void set_synced(bool on) override {
    no_sync_.reset();
    if (!on) no_sync_.reset(new NoSync(model_->no_sync()));
  }
  void rebuild() override { model_->rebuild(); }
  bool is_rank(int64_t rank) const override {
    return world_.size() > 1 && world_.rank() == rank;
  }
  void wait_for_ranks() override {
    if (world_.size() > 1) world_.barrier();
  }
  void load_buffers() override { model_->load_buffers(); }

 protected:
  /// The part of a batch that this rank is given.
  Batch own_part(const Batch& batch) const {
    if (world_.size() == 1) return batch;
    const auto [first, count] =
        part_of_rank(definition(), batch.samples, world_.rank());
    return batch.part(first, count).detached();
  }

 private:
  ProcessGroup world_;
  Model model_;
  std::unique_ptr<NoSync> no_sync_;
};

template <class Model>
Strategy::Step WrappedStrategy<Model>::train_step(const Batch& batch,
                                                  const std::string& loss,
                                                  AnyOptimizer* optimizer,
                                                  const StepOptions& given) {
  const Case& of = definition();
  const std::vector<torch::Tensor> parameters = module().unique_parameters();
  const Batch own = own_part(batch);
  const c10::IValue inputs = own.nested_inputs(of);
  const c10::IValue target = own.nested_target();
  TrainStepOptions options;
  options.clip_grad_norm(given.clip)
      .total_weight(given.total_weight)
      .total_samples(world_.size() > 1 ? batch.samples : -1);
  if (loss == "total") options.loss_reduction(LossReduction::kSum);
  const StepResult result = with_loss(
      of, loss, parameters,
      [&](const auto& function) {
        if (!optimizer) {
          return model_->train_step(inputs, target, function, options);
        }
        return model_->train_step(inputs, target, function, *optimizer->torch(),
                                  options);
      },
      std::make_index_sequence<kLosses.size()>());
  return {.loss = result.loss,
          .weight = result.weight,
          .norm = result.gradient_norm,
          .is_finite = result.is_finite};
}

}  // namespace lockstep::differential
