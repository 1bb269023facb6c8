#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>

#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/backward_node.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

IValue ReplicaGroup::forward(const std::vector<IValue>& inputs) {
  Stopwatch watch;
  const bool needs_graph = torch::GradMode::is_enabled();
  const IValue all = c10::ivalue::Tuple::create(inputs);
  auto region = std::make_shared<Region>(
      Region{.outputs = {},
             .input_leaves = {},
             .inputs = DifferentiableInputs(all, needs_graph)});
  if (exchange_ && needs_graph) {
    throw InvalidArgument("ddp",
                          {.code = ErrorCode::kForwardOverRanks,
                           .what = "forward() of several ranks under autograd",
                           .fix = "train with train_step(); evaluate under "
                                  "torch::NoGradGuard"});
  }
  std::optional<TraceSpan> span(std::in_place, "scatter",
                                TraceCategory::kCompute);
  const auto parts = inputs.empty() ? std::vector<IValue>{all}
                                    : scatter_checked(all, needs_graph);
  const auto chunks = static_cast<int64_t>(parts.size());
  region->outputs.resize(parts.size());
  region->input_leaves.resize(parts.size());
  begin(own_shards_.first + chunks);
  const bool trains = needs_graph && is_training();
  region->stream = forward_stream(trains);
  region->build = build_;
  phases_.scatter_s = watch.restart();
  span.reset();

  std::vector<IValue> outputs(parts.size());
  const auto forward_part = [&](size_t worker, int64_t shard,
                                Replica& replica) {
    const auto s = static_cast<size_t>(shard - own_shards_.first);
    replica.drop_gradients();
    const IValue chunk =
        region->inputs.cut_from_graph(parts[s], region->input_leaves[s]);
    outputs[s] = forward_shard(worker, shard, replica,
                               chunk.toTupleRef().elements().vec());
    DifferentiableInputs::pass_on_writes(parts[s], chunk);
  };
  for_each_shard(own_shards_.first + chunks, forward_part, region->stream);
  collect_phases();
  finish_buffers(chunks);
  if (trains) ++step_;

  watch.restart();
  span.emplace("gather", TraceCategory::kCompute);
  bool has_graph = false;
  std::vector<bool> output_has_graph;
  for (size_t s = 0; s < outputs.size(); ++s) {
    for_each_tensor(outputs[s], [&](const Tensor& out, const std::string&) {
      region->outputs[s].push_back(out);
      output_has_graph.resize(
          std::max(output_has_graph.size(), region->outputs[s].size()));
      if (!out.requires_grad()) return;
      has_graph = true;
      output_has_graph[region->outputs[s].size() - 1] = true;
    });
    torch::NoGradGuard no_grad;
    outputs[s] =
        map_tensors(outputs[s], [](const Tensor& out) { return out.detach(); });
  }
  IValue gathered = [&] {
    torch::NoGradGuard no_grad;
    return gather(outputs, output_device_, options_.dim());
  }();
  phases_.gather_s = watch.seconds();
  span.reset();
  if (!needs_graph || !has_graph) return gathered;

  auto node = std::make_shared<ParallelBackward>(shared_from_this(), region);
  node->set_next_edges(edges_behind(*region));
  size_t at = 0;
  for_each_tensor(gathered, [&](const Tensor& out, const std::string&) {
    if (output_has_graph[at++]) {
      torch::autograd::set_history(out, node);
    } else {
      node->add_input_metadata(out);
    }
  });
  return gathered;
}

torch::autograd::edge_list ReplicaGroup::edges_behind(
    const Region& region) const {
  std::unordered_set<const void*> reached;
  for (const auto& of_shard : region.outputs) {
    std::vector<Tensor> roots;
    std::copy_if(of_shard.begin(), of_shard.end(), std::back_inserter(roots),
                 [](const Tensor& output) { return output.requires_grad(); });
    for (const Tensor& leaf : leaves_below(roots)) {
      reached.insert(leaf.unsafeGetTensorImpl());
    }
  }
  auto edges = torch::autograd::collect_next_edges(parameters_);
  std::vector<bool> is_reached(edges.size());
  for (const auto& of_worker : replicas_) {
    for (const Replica& replica : of_worker) {
      const auto& parameters = replica.module().parameters;
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!reached.contains(parameters[i].second.unsafeGetTensorImpl())) {
          continue;
        }
        is_reached[unique_[i]] = true;
      }
    }
  }
  const auto& inputs = region.inputs.tensors();
  auto input_edges = torch::autograd::collect_next_edges(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    is_reached.push_back(
        std::any_of(region.input_leaves.begin(), region.input_leaves.end(),
                    [&](const auto& leaves) {
                      return reached.contains(leaves[i].unsafeGetTensorImpl());
                    }));
    edges.push_back(std::move(input_edges[i]));
  }
  for (size_t e = 0; e < edges.size(); ++e) {
    if (!is_reached[e]) edges[e] = {};
  }
  return edges;
}

}  // namespace lockstep
