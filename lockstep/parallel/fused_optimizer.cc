#include "lockstep/parallel/fused_optimizer.h"

#include <algorithm>

#include "lockstep/device/autocast.h"
#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/engine.h"

namespace lockstep::optim {

FusedOptimizer::FusedOptimizer(torch::optim::Optimizer& optimizer,
                               const std::shared_ptr<ParallelModuleBase>& model)
    : optimizer_(optimizer), engine_(model, model.get()) {
  follow_groups();
}

FusedOptimizer::~FusedOptimizer() = default;
FusedOptimizer::FusedOptimizer(FusedOptimizer&&) noexcept = default;

void FusedOptimizer::follow_groups() {
  if (blocks_ && blocks_->is_for(optimizer_)) return;
  BlockOptimizer::check_type(optimizer_);
  const auto parameters = parameters_of(optimizer_);
  engine_->check_has(parameters);
  const bool is_on_host =
      std::all_of(parameters.begin(), parameters.end(),
                  [](const torch::Tensor& each) { return each.is_cpu(); });
  if (!is_on_host) {
    blocks_.reset();
    return;
  }
  blocks_ = std::make_unique<BlockOptimizer>(optimizer_, StateFactory(),
                                             Kernels::kLikeTorch);
}

void FusedOptimizer::step() {
  follow_groups();
  if (blocks_) {
    engine_->update(*blocks_);
  } else {
    optimizer_.step();
  }
  // Casts of the previous weights.
  if (has_autocast()) drop_cast_weights();
}

void FusedOptimizer::zero_grad(bool set_to_none) {
  optimizer_.zero_grad(set_to_none);
}

}  // namespace lockstep::optim
