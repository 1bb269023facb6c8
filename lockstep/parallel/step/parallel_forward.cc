#include "lockstep/parallel/step/parallel_forward.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/device/aligned_tensor.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/torch_compat.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/step/differentiable_inputs.h"
#include "lockstep/parallel/step/outer_gradients.h"
#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/step/shard_backward.h"
#include "lockstep/parallel/step/sharded_update.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;
using torch::autograd::variable_list;
using Phase = StepClock::Phase;

namespace {

/// State that a forward under grad mode keeps for the backward. Shards are
/// counted from this rank's first.
struct Region {
  ReplicaGroup::RandomStream stream;
  int64_t build = 0;                   // build of the group in the forward
  std::shared_ptr<Replicas> replicas;  // that ran the forward
  int64_t backwards = 0;               // number of backward passes through it
  // [shard][i]: outputs with their graph, and leaves for the inputs that
  // require grad.
  std::vector<std::vector<Tensor>> outputs;
  std::vector<std::vector<Tensor>> input_leaves;
  DifferentiableInputs inputs;
};

/// The autograd node of a parallel forward. Its inputs are the gradients of the
/// gathered outputs. Its outputs are the gradients of the original's parameters
/// and of the inputs that require grad.
class ParallelBackward : public torch::autograd::Node {
 public:
  ParallelBackward(std::shared_ptr<ReplicaGroup> group,
                   std::shared_ptr<Region> region)
      : group_(std::move(group)), region_(std::move(region)) {}

  std::string name() const override { return "DataParallelBackward"; }
  variable_list apply(variable_list&& gradients) override;
  void release_variables() override { region_.reset(); }

 private:
  /// Gradients of all shards.
  struct Gradients {
    std::vector<std::vector<PartialSum>> partials;  // by worker
    std::vector<std::vector<Tensor>> inputs;        // by shard
    std::vector<std::vector<OtherLeaf>> others;     // by shard
  };
  /// Returns the gradients of the parameters. Writes those of the inputs to
  /// `input_gradients`.
  variable_list backward(const variable_list& output_gradients, bool keep_graph,
                         variable_list& input_gradients);
  /// Runs the backward of each shard in the thread of its device.
  Gradients run_shards(const variable_list& output_gradients, bool keep_graph);
  /// Returns each shard's part of the gradients of the outputs.
  std::vector<variable_list> cut(const variable_list& output_gradients) const;
  void check_build() const;
  /// Returns the random stream of the next backward. A backward draws other
  /// numbers than its forward, and than another backward through the same
  /// graph.
  ReplicaGroup::RandomStream next_stream();

  std::shared_ptr<ReplicaGroup> group_;
  std::shared_ptr<Region> region_;
};

/// Returns the edges to the parameters and the inputs. A parameter or input
/// that no output depends on has no edge, because the engine would call its
/// hooks without a gradient.
torch::autograd::edge_list edges_behind(const ReplicaGroup& group,
                                        const Region& region) {
  std::unordered_set<const void*> reached;
  for (const auto& shard_values : region.outputs) {
    std::vector<Tensor> roots;
    std::copy_if(shard_values.begin(), shard_values.end(),
                 std::back_inserter(roots),
                 [](const Tensor& output) { return output.requires_grad(); });
    for (const Tensor& leaf : leaves_below(roots)) {
      reached.insert(leaf.unsafeGetTensorImpl());
    }
  }
  auto edges = torch::autograd::collect_next_edges(group.parameters());
  std::vector<bool> is_reached = group.are_reached([&](const Tensor& leaf) {
    return reached.contains(leaf.unsafeGetTensorImpl());
  });
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

/// Moves the tensors of the shards' outputs, which have a graph, to `region`,
/// and returns the outputs, gathered and without the graph.
IValue gather_outputs(ReplicaGroup& group, std::vector<IValue> outputs,
                      Region& region) {
  const torch::NoGradGuard no_grad;
  for (size_t s = 0; s < outputs.size(); ++s) {
    for (const TensorAtPath& at : tensors_in(outputs[s])) {
      region.outputs[s].push_back(at.tensor);
    }
    outputs[s] = detached(outputs[s]);
  }
  const auto span = group.clock().time(Phase::kGather, "gather");
  return gather(outputs, group.output_device(), group.dim());
}

/// Makes the node of a forward the history of its `gathered` outputs, unless no
/// output has a graph.
void connect(const IValue& gathered, const std::shared_ptr<ReplicaGroup>& group,
             const std::shared_ptr<Region>& region) {
  const std::vector<TensorAtPath> tensors = tensors_in(gathered);
  std::vector<bool> has_graph(tensors.size());
  for (const auto& shard_values : region->outputs) {
    for (size_t o = 0; o < shard_values.size(); ++o) {
      if (shard_values[o].requires_grad()) has_graph[o] = true;
    }
  }
  if (std::find(has_graph.begin(), has_graph.end(), true) == has_graph.end()) {
    return;
  }
  auto node = make_node<ParallelBackward>(group, region);
  node->set_next_edges(edges_behind(*group, *region));
  for (size_t o = 0; o < has_graph.size(); ++o) {
    if (has_graph[o]) {
      torch::autograd::set_history(tensors[o].tensor, node);
    } else {
      node->add_input_metadata(tensors[o].tensor);
    }
  }
}

}  // namespace

IValue parallel_forward(const std::shared_ptr<ReplicaGroup>& group,
                        const std::vector<IValue>& inputs,
                        StepAttachments attachments) {
  StepClock& clock = group->clock();
  clock.restart();
  const bool needs_graph = torch::GradMode::is_enabled();
  const StepBatch batch = [&] {
    const auto span = clock.time(Phase::kScatter, "scatter");
    return cut_forward(*group, inputs, needs_graph);
  }();
  auto region = std::make_shared<Region>(Region{
      .outputs = {}, .input_leaves = {}, .inputs = batch.differentiable});
  region->outputs.resize(batch.parts.size());
  region->input_leaves.resize(batch.parts.size());
  group->begin(batch.shards());
  const bool trains = needs_graph && group->is_training();
  region->stream = group->forward_stream(trains);
  const ForwardContext context{
      .group = *group, .batch = batch, .stream = region->stream};
  for (const auto& each : attachments) each->before_forward(context);
  region->build = group->build();
  region->replicas = group->replicas();

  std::vector<IValue> outputs(batch.parts.size());
  const auto forward_part = [&](size_t worker, int64_t shard,
                                Replica& replica) {
    const size_t s = batch.part_of(shard);
    Shard pass(*group, batch, worker, shard, replica, Shard::Mode::kForward);
    outputs[s] = pass.forward(pass.part());
    pass.pass_on_writes();
    region->input_leaves[s] = pass.take_pass().input_leaves;
  };
  group->for_each_shard(batch.shards(), region->stream, forward_part);
  group->finish_buffers(batch.shards());
  if (trains) group->count_step();

  IValue gathered = gather_outputs(*group, std::move(outputs), *region);
  if (needs_graph) connect(gathered, group, region);
  return gathered;
}

variable_list ParallelBackward::apply(variable_list&& gradients) {
  if (torch::GradMode::is_enabled()) {
    throw ParallelError(
        "parallel",
        {.code = ErrorCode::kUnsupportedGraph,
         .what = "a DataParallel region can't be differentiated twice",
         .expected = "create_graph=false",
         .got = "create_graph=true",
         .fix = "compute the double backward on the module itself, "
                "model->module()"});
  }
  if (!region_) {
    throw ParallelError(
        "parallel",
        {.code = ErrorCode::kUnsupportedGraph,
         .what = "backward through a DataParallel forward a second time, "
                 "after its graph was freed",
         .fix = "pass retain_graph=true to the first backward"});
  }
  variable_list input_gradients;
  variable_list result =
      backward(gradients, torch::autograd::get_current_graph_task_keep_graph(),
               input_gradients);
  result.insert(result.end(), input_gradients.begin(), input_gradients.end());
  return result;
}

void ParallelBackward::check_build() const {
  if (region_->build == group_->build()) return;
  throw ParallelError(
      "parallel", {.code = ErrorCode::kModuleChanged,
                   .what = "backward through a forward whose replicas are gone",
                   .expected = "the module as it was in that forward",
                   .got = "a submodule or a tensor of it was replaced since",
                   .fix = "call backward() first, then change the module"});
}

ReplicaGroup::RandomStream ParallelBackward::next_stream() {
  ReplicaGroup::RandomStream stream = region_->stream;
  stream.phase += 2 * static_cast<uint64_t>(++region_->backwards);
  return stream;
}

std::vector<variable_list> ParallelBackward::cut(
    const variable_list& output_gradients) const {
  std::vector<variable_list> parts(region_->outputs.size());
  for (size_t o = 0; o < output_gradients.size(); ++o) {
    int64_t begin = 0;
    for (size_t s = 0; s < parts.size(); ++s) {
      const Tensor& output = region_->outputs[s][o];
      if (!output_gradients[o].defined()) {
        parts[s].emplace_back();
      } else if (output.dim() == 0) {
        parts[s].push_back(output_gradients[o][static_cast<int64_t>(s)]);
      } else {
        const int64_t size = output.size(group_->dim());
        parts[s].push_back(
            output_gradients[o].narrow(group_->dim(), begin, size));
        begin += size;
      }
    }
  }
  return parts;
}

ParallelBackward::Gradients ParallelBackward::run_shards(
    const variable_list& output_gradients, bool keep_graph) {
  const std::vector<variable_list> parts = cut(output_gradients);
  const size_t count = parts.size();
  const int64_t first = group_->own_shards().first;
  Gradients gradients{.partials = std::vector<std::vector<PartialSum>>(
                          group_->workers().size()),
                      .inputs = std::vector<std::vector<Tensor>>(count),
                      .others = std::vector<std::vector<OtherLeaf>>(count)};
  // LibTorch's thread of a device waits for the other devices in the backward
  // of one forward. It may begin that of another forward in the meantime.
  const bool is_interposed = group_->is_at_work();
  const auto backward_shard = [&](size_t worker, int64_t shard,
                                  Replica& replica) {
    const auto span =
        group_->clock().time_shard(Phase::kBackward, worker, shard, "backward");
    const int64_t place = shard - first;
    const auto s = static_cast<size_t>(place);
    variable_list roots;
    for (const Tensor& part : parts[s]) {
      roots.push_back(
          part.defined() ? aligned(to_device(part, replica.device())) : part);
    }
    ShardGradients result =
        shard_backward(region_->outputs[s], roots, keep_graph,
                       {.replica = replica,
                        .unique = group_->unique(),
                        .originals = group_->parameters(),
                        .inputs = region_->input_leaves[s],
                        .is_interposed = is_interposed});
    append_partial(gradients.partials[worker],
                   {place, place + 1, std::move(result.parameters)},
                   static_cast<int64_t>(count));
    gradients.inputs[s] = std::move(result.inputs);
    gradients.others[s] = std::move(result.others);
  };
  group_->for_each_shard(first + static_cast<int64_t>(count), next_stream(),
                         backward_shard, region_->replicas.get());
  return gradients;
}

variable_list ParallelBackward::backward(const variable_list& output_gradients,
                                         bool keep_graph,
                                         variable_list& input_gradients) {
  check_build();
  const DifferentiableInputs& inputs = region_->inputs;
  Gradients gradients = run_shards(output_gradients, keep_graph);
  input_gradients =
      inputs.gather(gradients.inputs, region_->input_leaves, group_->dim());
  OuterGradients outer;
  outer.add_sums(std::move(gradients.others));
  variable_list sums = [&] {
    const auto span = group_->clock().time(Phase::kReduce, "reduce");
    Reduction reduction(join_partials(std::move(gradients.partials)),
                        static_cast<int64_t>(region_->outputs.size()),
                        group_->parameters());
    return ShardedUpdate(*group_, nullptr)
        .finish(reduction, SumsFor::kGradients);
  }();
  // The graph of the forward does not show what a backward within the backward
  // (activation checkpointing) reaches, so there is no edge for it.
  const auto add_unexpected = [&](const Tensor& leaf, const Tensor& gradient,
                                  size_t edge) {
    if (!next_edge(edge).is_valid()) outer.add(leaf, gradient);
  };
  for (size_t p = 0; p < sums.size(); ++p) {
    add_unexpected(group_->parameters()[p], sums[p], p);
  }
  for (size_t i = 0; i < input_gradients.size(); ++i) {
    add_unexpected(inputs.tensors()[i], input_gradients[i], sums.size() + i);
  }
  std::move(outer).backward();
  return sums;
}

}  // namespace lockstep
