#include "lockstep/parallel/check/module_loss.h"

#include <algorithm>
#include <numeric>

#include <c10/util/ScopeExit.h>

#include "lockstep/base/error.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/module/kept_tensors.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/replica.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

// Each of them is computed twice, which must not take long with a large model.
constexpr int64_t kMaxSamples = 4;

int64_t samples_in(const ComputedShards& shards) {
  return std::accumulate(shards.samples.begin(), shards.samples.end(),
                         int64_t{0});
}

/// Returns the first `count` samples of `value`.
IValue first_samples(const IValue& value, int64_t count,
                     const ComputedShards& shards) {
  for (const TensorAtPath& at : tensors_in(value)) {
    if (!at.is_shared) continue;
    throw ParallelError("parallel",
                        {.code = ErrorCode::kBadLoss,
                         .what = "an input of a module that returns its loss "
                                 "is not made of samples",
                         .expected = "inputs of one row for each sample",
                         .got = "a tensor that is shared()"});
  }
  return map_tensors(value, [&](const Tensor& tensor) {
    return to_device(tensor.detach().narrow(shards.dim, 0, count),
                     shards.replica.device());
  });
}

}  // namespace

bool ModuleLoss::is_in(const ComputedShards& shards) {
  const auto tensors = tensors_in(shards.outputs.front());
  return samples_in(shards) > 0 && std::any_of(tensors.begin(), tensors.end(),
                                               [](const TensorAtPath& at) {
                                                 return at.tensor.dim() == 0;
                                               });
}

ModuleLoss::ModuleLoss(const ComputedShards& shards) : computed_(shards) {
  const int64_t count = std::min(samples_in(shards), kMaxSamples);
  loss_ = [this](const IValue& inputs, const IValue& target) {
    return call(inputs, target);
  };
  target_ = first_samples(shards.target, count, shards);
  const IValue inputs =
      first_samples(c10::ivalue::Tuple::create(shards.inputs), count, shards);
  const WeightedLoss loss = call(inputs, target_);
  ShardPass& pass = passes_.emplace_back();
  outputs_ = {inputs};
  pass.loss = loss.loss;
  pass.states_weight = loss.weight.defined();
  pass.weight = pass.states_weight ? loss.weight.item<double>()
                                   : static_cast<double>(count);
  samples_ = {count};
}

ComputedShards ModuleLoss::shards() const {
  return {.loss = loss_,
          .reduction = computed_.reduction,
          .dim = computed_.dim,
          .replica = computed_.replica,
          .inputs = computed_.inputs,
          .target = target_,
          .first_target = target_,
          .passes = passes_,
          .outputs = outputs_,
          .samples = samples_};
}

WeightedLoss ModuleLoss::call(const IValue& inputs,
                              const IValue& target) const {
  const torch::NoGradGuard no_grad;
  const ModuleHandle& module = computed_.replica.module();
  const KeptTensors buffers = kept_buffers(module);
  const std::vector<bool> modes = module.modes();
  const auto restores = c10::make_scope_exit([&] {
    module.set_modes(modes);
    buffers.restore();
  });
  module.set_modes(std::vector<bool>(modes.size(), false));
  const IValue arguments = cloned(inputs);
  return computed_.loss(module.forward(arguments.toTupleRef().elements().vec()),
                        target);
}

}  // namespace lockstep
