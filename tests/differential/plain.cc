#include "tests/differential/plain.h"

#include <algorithm>
#include <cmath>

#include <torch/nn/utils/clip_grad.h>

#include "lockstep/base/chunk.h"

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

std::vector<Tensor> copies_of(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors)
    copies.push_back(tensor.detach().clone());
  return copies;
}

/// Not seen by autograd, as what BatchNorm does to its statistics.
void assign(const std::vector<Tensor>& targets,
            const std::vector<Tensor>& values) {
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i].variable_data().copy_(values[i]);
  }
}

/// Autograd may give two parameters gradients in one storage, in which it then
/// adds up, and in which clipping scales, twice. Those are LibTorch's faults
/// and not what is right.
void separate_gradients(const InterpretedModule& module) {
  for (Tensor& parameter : module.unique_parameters()) {
    Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) gradient = gradient.clone();
  }
}

bool requires_grad(const IValue& outputs) {
  const auto leaves = leaves_of(outputs);
  return std::any_of(leaves.begin(), leaves.end(), [](const Tensor& leaf) {
    return leaf.defined() && leaf.requires_grad();
  });
}

/// As gather() does: batches are concatenated, scalars stacked.
IValue concatenated(const std::vector<IValue>& parts) {
  std::vector<std::vector<Tensor>> leaves;
  for (const IValue& part : parts) leaves.push_back(leaves_of(part));
  std::vector<Tensor> whole;
  for (size_t i = 0; i < leaves[0].size(); ++i) {
    std::vector<Tensor> pieces;
    for (const auto& each : leaves) pieces.push_back(each[i]);
    if (!pieces[0].defined()) {
      whole.emplace_back();
    } else {
      whole.push_back(pieces[0].dim() == 0 ? torch::stack(pieces)
                                           : torch::cat(pieces));
    }
  }
  return nest(whole, "tuple", std::vector<bool>(whole.size()));
}

}  // namespace

std::vector<Plain::Shard> Plain::shards_of(const Batch& batch) const {
  std::vector<Shard> shards;
  int64_t begin = 0;
  for (const int64_t size : chunk_sizes(batch.samples, definition().shards)) {
    // Without any sample, one shard is the batch.
    const double weight =
        batch.samples == 0
            ? 1.0
            : static_cast<double>(size) / static_cast<double>(batch.samples);
    shards.push_back({batch.part(begin, size), weight});
    begin += size;
  }
  return shards;
}

std::vector<Plain::Shard> Plain::rank_parts_of(const Batch& batch) const {
  const Case& of = definition();
  std::vector<Shard> parts;
  for (int rank = 0; rank < of.ranks; ++rank) {
    // A rank without samples takes part.
    const auto [first, count] = part_of_rank(of, batch.samples, rank);
    double weight = 1.0 / static_cast<double>(of.ranks);
    if (of.kind == "ddp" && of.average == "samples" && batch.samples > 0) {
      weight = static_cast<double>(count) / static_cast<double>(batch.samples);
    }
    parts.push_back({batch.part(first, count), weight});
  }
  return parts;
}

std::vector<IValue> Plain::forward_shards(const std::vector<Shard>& shards) {
  const auto buffers = module().buffers();
  const auto before = copies_of(buffers);
  std::vector<Tensor> first;
  std::vector<IValue> outputs;
  for (const Shard& shard : shards) {
    if (!outputs.empty()) assign(buffers, before);
    outputs.push_back(
        module().forward(shard.batch.nested_inputs(definition())));
    if (outputs.size() == 1) first = copies_of(buffers);
  }
  assign(buffers, first);
  return outputs;
}

IValue Plain::forward(const Batch& batch) {
  if (!couples_samples(definition()) || !module().is_training()) {
    return module().forward(batch.nested_inputs(definition()));
  }
  return concatenated(forward_shards(shards_of(batch)));
}

Strategy::Step Plain::backward_whole(const Batch& batch,
                                     const std::string& loss,
                                     double total_weight) {
  const Step step = backward_of(definition(), loss, module(), forward(batch),
                                batch, total_weight);
  separate_gradients(module());
  return step;
}

Strategy::Step Plain::backward_shards(const std::vector<Shard>& shards,
                                      const std::string& loss) {
  const Case& of = definition();
  Step step;
  const auto outputs = forward_shards(shards);
  for (size_t s = 0; s < shards.size(); ++s) {
    const Tensor value =
        loss_of(of, loss, outputs[s], shards[s].batch.nested_target(),
                module().unique_parameters(), shards[s].batch.inputs[0],
                shards[s].batch.residual)
            .loss;
    double weight = shards[s].weight;
    // A backward that does not come to the model is each rank's own.
    if (of.kind == "ddp" && !requires_grad(outputs[s])) {
      weight = 1.0 / static_cast<double>(shards.size());
    }
    const Tensor weighted = value * weight;
    weighted.backward();
    separate_gradients(module());
    step.loss += weighted.item<double>();
  }
  return step;
}

Strategy::Step Plain::backward(const Batch& batch, const std::string& loss) {
  return definition().ranks == 1 ? backward_whole(batch, loss)
                                 : backward_shards(rank_parts_of(batch), loss);
}

Strategy::Step Plain::train_step(const Batch& batch, const std::string& loss,
                                 AnyOptimizer* optimizer,
                                 const StepOptions& options) {
  const Case& of = definition();
  // Outputs of programs have samples, so that there is a whole output.
  Step step = is_program(of) || !couples_samples(of)
                  ? backward_whole(batch, loss, options.total_weight)
                  : backward_shards(shards_of(batch), loss);
  step.is_finite = std::isfinite(step.loss);
  if (!optimizer) return step;
  if (step.is_finite) {
    if (options.clip > 0) {
      step.norm = torch::nn::utils::clip_grad_norm_(optimizer->parameters(),
                                                    options.clip);
    }
    optimizer->torch()->step();
  }
  module().zero_grad();
  return step;
}

}  // namespace lockstep::differential
