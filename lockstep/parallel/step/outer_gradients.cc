#include "lockstep/parallel/step/outer_gradients.h"

#include <algorithm>
#include <string>

#include <torch/csrc/autograd/engine.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reduction/reduction.h"

namespace lockstep {

using torch::Tensor;

OuterGradients take_outer_gradients(const StepBatch& batch,
                                    std::vector<ShardPass>& passes, int64_t dim,
                                    bool is_alone) {
  const DifferentiableInputs& differentiable = batch.differentiable;
  std::vector<std::vector<Tensor>> leaves, input_gradients;
  std::vector<std::vector<OtherLeaf>> others;
  for (ShardPass& pass : passes) {
    leaves.push_back(std::move(pass.input_leaves));
    input_gradients.push_back(std::move(pass.gradients.inputs));
    others.push_back(std::move(pass.gradients.others));
  }
  const std::vector<Tensor> gradients =
      differentiable.gather(input_gradients, leaves, dim);
  OuterGradients outer;
  for (size_t i = 0; i < gradients.size(); ++i) {
    outer.add(differentiable.tensors()[i], gradients[i]);
  }
  if (is_alone) {
    outer.add_sums(std::move(others));
  } else {
    refuse_foreign_leaves(std::move(others));
  }
  return outer;
}

void refuse_foreign_leaves(std::vector<std::vector<OtherLeaf>> others) {
  using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;
  struct Leaf {
    WeakImpl impl;
    std::string shape;
  };
  std::vector<Leaf> leaves;
  for (const auto& shard_values : others) {
    for (const OtherLeaf& other : shard_values) {
      leaves.push_back({WeakImpl(other.leaf.getIntrusivePtr()),
                        c10::str(other.leaf.sizes())});
    }
  }
  others.clear();
  for (const Leaf& leaf : leaves) {
    if (leaf.impl.expired()) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kUnsupportedGraph,
         .what = "the loss depends on a tensor of shape " + leaf.shape +
                 " that requires grad and is no parameter of the module, so "
                 "each rank would train one of its own",
         .fix = "register it in the module, or detach it; of a leaf that "
                "forward() or the loss makes, keep only a detached copy"});
  }
}

void OuterGradients::add(const Tensor& tensor, Tensor gradient) {
  if (!gradient.defined()) return;
  tensors_.push_back(tensor);
  gradients_.push_back(std::move(gradient));
}

void OuterGradients::add_sums(std::vector<std::vector<OtherLeaf>> others) {
  // The shards' losses come from one function, so their leaves are mostly the
  // same.
  std::vector<Tensor> leaves;
  for (const auto& shard_values : others) {
    for (const OtherLeaf& other : shard_values) {
      const bool is_known = std::any_of(
          leaves.begin(), leaves.end(),
          [&](const Tensor& leaf) { return leaf.is_same(other.leaf); });
      if (!is_known) leaves.push_back(other.leaf);
    }
  }
  for (const Tensor& leaf : leaves) {
    std::vector<OwnedGradient> per_shard;
    for (auto& shard_values : others) {
      OwnedGradient& own = per_shard.emplace_back();
      for (OtherLeaf& other : shard_values) {
        if (other.leaf.is_same(leaf)) own = std::move(other.gradient);
      }
    }
    add(leaf, sum_over_shards(std::move(per_shard)).release());
  }
}

void OuterGradients::multiply(double factor) {
  if (factor == 1) return;
  const torch::NoGradGuard no_grad;
  for (Tensor& gradient : gradients_) gradient = gradient * factor;
}

void OuterGradients::backward() && {
  if (empty()) return;
  torch::autograd::Engine::get_default_engine().execute(
      torch::autograd::collect_next_edges(tensors_), gradients_,
      /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace lockstep
