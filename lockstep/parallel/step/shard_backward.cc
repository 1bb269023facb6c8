#include "lockstep/parallel/step/shard_backward.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "lockstep/base/error.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep {

using torch::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::collect_next_edges;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

/// Returns the leaves that belong neither to the replica nor to the shard's
/// inputs.
std::vector<Tensor> others_among(const std::vector<Tensor>& found,
                                 const ShardLeaves& leaves) {
  std::unordered_set<const void*> known;
  for (const auto& [name, parameter] : leaves.replica.module().parameters) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  for (const Tensor& input : leaves.inputs) {
    known.insert(input.unsafeGetTensorImpl());
  }
  std::vector<Tensor> others;
  for (const Tensor& leaf : found) {
    if (!known.contains(leaf.unsafeGetTensorImpl())) others.push_back(leaf);
  }
  return others;
}

void check_no_hooks(const std::vector<Tensor>& leaves) {
  for (const Tensor& leaf : leaves) {
    if (!has_hooks(leaf)) continue;
    throw ParallelError(
        "parallel",
        {.code = ErrorCode::kUnsupportedGraph,
         .what = "a tensor of shape " + c10::str(leaf.sizes()) +
                 " that every shard's loss uses directly has a hook, which "
                 "would see the gradient of one shard",
         .expected = "a hook that sees the gradient of the whole batch",
         .fix = "remove the hook, or compute that part of the loss outside of "
                "the loss function, with forward() and backward()"});
  }
}

/// Runs the engine. Returns the gradients of `captured`. If there are any,
/// nothing is accumulated.
variable_list run_engine(const edge_list& roots, const variable_list& gradients,
                         bool keep_graph, const std::vector<Tensor>& captured) {
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, keep_graph, /*create_graph=*/false,
      /*accumulate_grad=*/captured.empty(), collect_next_edges(captured));
}

using OnGradient = std::function<void(size_t, const Tensor&)>;

/// Calls `on_gradient` after autograd has added to a leaf's gradient.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(size_t p, const OnGradient& on_gradient)
      : p_(p), on_gradient_(on_gradient) {}
  void operator()(const Tensor& leaf) override { on_gradient_(p_, leaf); }

 private:
  size_t p_;
  const OnGradient& on_gradient_;
};

/// Hooks the replica's parameters during its lifetime, except if several of
/// them count as one parameter of the original.
class ReplicaHooks {
 public:
  explicit ReplicaHooks(const ShardLeaves& leaves) {
    if (!leaves.on_gradient) return;
    const auto& parameters = leaves.replica.module().parameters;
    std::vector<const Tensor*> leaf_of(leaves.originals.size());
    std::vector<bool> has_several(leaves.originals.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      const size_t p = leaves.unique[i];
      const Tensor& leaf = parameters[i].second;
      if (leaf_of[p] && !leaf_of[p]->is_same(leaf)) has_several[p] = true;
      leaf_of[p] = &leaf;
    }
    for (size_t p = 0; p < leaf_of.size(); ++p) {
      if (!leaf_of[p] || has_several[p] || !leaf_of[p]->requires_grad()) {
        continue;
      }
      torch::autograd::impl::set_post_acc_grad_hooks(
          *leaf_of[p], std::make_unique<GradientHook>(p, leaves.on_gradient));
      hooked_.push_back(*leaf_of[p]);
    }
  }
  ~ReplicaHooks() {
    for (const Tensor& leaf : hooked_) {
      torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
    }
  }
  ReplicaHooks(const ReplicaHooks&) = delete;
  ReplicaHooks& operator=(const ReplicaHooks&) = delete;

 private:
  std::vector<Tensor> hooked_;
};

/// Adds the gradient from the loss's direct use of an original parameter to the
/// gradient of the replica's parameter.
void add_direct_part(OwnedGradient& sum, OwnedGradient part,
                     const Tensor& replica_parameter) {
  if (!part.defined()) return;
  const bool is_cast =
      replica_parameter.scalar_type() != part.tensor().scalar_type();
  if (!sum.defined()) {
    sum = is_cast ? std::move(part)
                  : OwnedGradient::take(std::move(part).release(),
                                        replica_parameter);
    return;
  }
  if (is_cast) {
    sum = OwnedGradient::take(std::move(sum).release(), part.tensor());
  }
  torch::NoGradGuard no_grad;
  Tensor total = sum.tensor();
  total.add_(to_device(part.tensor(), place_of(total)));
}

/// The gradients that a backward has captured, by leaf.
class Captured {
 public:
  Captured(const std::vector<Tensor>& leaves, variable_list gradients) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      of_[leaves[i].unsafeGetTensorImpl()] = std::move(gradients[i]);
    }
  }
  /// Returns the gradient of `leaf`, once, or an undefined tensor.
  Tensor take(const Tensor& leaf) {
    const auto entry = of_.find(leaf.unsafeGetTensorImpl());
    return entry == of_.end() ? Tensor() : std::move(entry->second);
  }

 private:
  std::unordered_map<const void*, Tensor> of_;
};

/// Moves the captured gradients of the replica's parameters to `result`. The
/// leaves' .grad belongs to another backward.
void take_apart(const ShardLeaves& leaves, Captured& captured,
                ShardGradients& result) {
  const torch::NoGradGuard no_grad;
  const auto& parameters = leaves.replica.module().parameters;
  result.parameters.resize(leaves.originals.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor gradient = captured.take(parameters[i].second);
    if (!gradient.defined()) continue;
    OwnedGradient& sum = result.parameters[leaves.unique[i]];
    if (sum.defined()) gradient = sum.tensor() + gradient;
    sum = OwnedGradient::take(std::move(gradient), parameters[i].second);
  }
}

/// Moves the captured gradients of the replica's parameters, and those that a
/// backward within the backward (checkpointing) has accumulated, to `result`.
void take_all(const ShardLeaves& leaves, Captured& captured,
              ShardGradients& result) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : leaves.replica.module().parameters) {
    Tensor gradient = captured.take(parameter);
    if (!gradient.defined()) continue;
    Tensor& accumulated = parameter.mutable_grad();
    result.has_several_parts |= accumulated.defined();
    accumulated =
        accumulated.defined() ? accumulated + gradient : std::move(gradient);
  }
  result.parameters =
      leaves.replica.take_gradients(leaves.unique, leaves.originals.size());
}

/// Moves the captured gradients of `others` to `result`: those of the
/// original's parameters to the replica's, and the rest to result.others.
void take_others(const ShardLeaves& leaves, const std::vector<Tensor>& others,
                 Captured& captured, ShardGradients& result) {
  std::unordered_map<const void*, size_t> original_places;
  for (size_t p = 0; p < leaves.originals.size(); ++p) {
    original_places[leaves.originals[p].unsafeGetTensorImpl()] = p;
  }
  for (const Tensor& other : others) {
    OwnedGradient gradient = OwnedGradient::take(captured.take(other), other);
    const auto original = original_places.find(other.unsafeGetTensorImpl());
    if (original == original_places.end()) {
      result.others.push_back({other, std::move(gradient)});
      continue;
    }
    const size_t p = original->second;
    const size_t i = static_cast<size_t>(
        std::find(leaves.unique.begin(), leaves.unique.end(), p) -
        leaves.unique.begin());
    result.has_several_parts = true;
    add_direct_part(result.parameters[p], std::move(gradient),
                    leaves.replica.module().parameters[i].second);
  }
}

/// Runs the backward if it reaches leaves that another one reaches too. All
/// gradients are captured, as in torch::autograd::grad().
ShardGradients capturing_backward(const edge_list& roots,
                                  const variable_list& gradients,
                                  bool keep_graph, const ShardLeaves& leaves,
                                  const std::vector<Tensor>& found,
                                  const std::vector<Tensor>& others) {
  check_no_hooks(others);
  Captured captured(found, run_engine(roots, gradients, keep_graph, found));
  ShardGradients result;
  if (leaves.is_interposed) {
    take_apart(leaves, captured, result);
  } else {
    take_all(leaves, captured, result);
  }
  for (const Tensor& input : leaves.inputs) {
    Tensor gradient = captured.take(input);
    Tensor& accumulated = input.mutable_grad();
    if (accumulated.defined()) {
      gradient = gradient.defined() ? accumulated + gradient : accumulated;
      accumulated.reset();
    }
    result.inputs.push_back(std::move(gradient));
  }
  take_others(leaves, others, captured, result);
  return result;
}

}  // namespace

std::vector<Tensor> leaves_below(const std::vector<Tensor>& roots) {
  std::vector<Tensor> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> stack;
  const auto push = [&](const edge_list& edges) {
    for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
      if (edge->is_valid()) stack.push_back(edge->function.get());
    }
  };
  // If a root is a leaf itself, only this edge keeps its node alive.
  const edge_list first = collect_next_edges(roots);
  push(first);
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    } else {
      push(node->next_edges());
    }
  }
  return leaves;
}

bool has_hooks(const Tensor& leaf) {
  if (!torch::autograd::impl::get_autograd_meta(leaf)) return false;
  if (!torch::autograd::impl::hooks(leaf).empty() ||
      torch::autograd::impl::post_acc_grad_hooks(leaf)) {
    return true;
  }
  const auto accumulator =
      torch::autograd::impl::try_get_grad_accumulator(leaf);
  return accumulator && (!accumulator->pre_hooks().empty() ||
                         !accumulator->post_hooks().empty());
}

ShardGradients shard_backward(const std::vector<Tensor>& roots,
                              const std::vector<Tensor>& gradients,
                              bool keep_graph, const ShardLeaves& leaves) {
  std::vector<Tensor> used_roots;
  variable_list used_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!gradients[i].defined() || !roots[i].requires_grad()) continue;
    used_roots.push_back(roots[i]);
    used_gradients.push_back(gradients[i]);
  }
  ShardGradients result;
  result.inputs.resize(leaves.inputs.size());
  if (used_roots.empty()) {
    result.parameters.resize(leaves.originals.size());
    return result;
  }
  const std::vector<Tensor> found = leaves_below(used_roots);
  const edge_list edges = collect_next_edges(used_roots);
  used_roots.clear();
  const std::vector<Tensor> others = others_among(found, leaves);
  try {
    if (!others.empty() || leaves.is_interposed) {
      return capturing_backward(edges, used_gradients, keep_graph, leaves,
                                found, others);
    }
    const ReplicaHooks hooks(leaves);
    run_engine(edges, used_gradients, keep_graph, {});
  } catch (...) {
    if (!leaves.is_interposed) leaves.replica.drop_gradients();
    for (const Tensor& input : leaves.inputs) input.mutable_grad().reset();
    throw;
  }
  used_gradients.clear();
  result.parameters =
      leaves.replica.take_gradients(leaves.unique, leaves.originals.size());
  for (size_t i = 0; i < leaves.inputs.size(); ++i) {
    result.inputs[i] = std::move(leaves.inputs[i].mutable_grad());
    leaves.inputs[i].mutable_grad().reset();
  }
  return result;
}

ShardGradients trial_backward(const c10::IValue& output,
                              const ShardLeaves& leaves) {
  std::vector<Tensor> roots, gradients;
  for (const auto& [out, path, is_shared] : tensors_in(output)) {
    // Without grad mode, an output that is itself a parameter has no graph.
    if (!out.requires_grad() || !torch::GradMode::is_enabled()) continue;
    roots.push_back(out);
    // The values differ, because with equal ones the gradients below a softmax
    // would cancel out.
    gradients.push_back(
        torch::linspace(-1, 1, out.numel(), out.options().requires_grad(false))
            .reshape(out.sizes()));
  }
  // The backward computes in the types that the forward used.
  const NoAutocast no_autocast;
  return shard_backward(roots, gradients, /*keep_graph=*/true, leaves);
}

}  // namespace lockstep
