#include "lockstep/parallel/replicas/backward_node.h"

#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/outer_gradients.h"
#include "lockstep/parallel/replicas/shard_backward.h"

namespace lockstep {

using torch::Tensor;
using torch::autograd::variable_list;

variable_list ParallelBackward::apply(variable_list&& gradients) {
  if (torch::GradMode::is_enabled()) {
    throw InvalidArgument(
        "parallel",
        {.code = ErrorCode::kDoubleBackward,
         .what = "a DataParallel region can't be differentiated twice",
         .expected = "create_graph=false",
         .got = "create_graph=true",
         .fix = "compute the double backward on the module itself, "
                "model->module()"});
  }
  if (!region_) {
    throw InvalidArgument(
        "parallel",
        {.code = ErrorCode::kBackwardTwice,
         .what = "backward through a DataParallel forward a second time, "
                 "after its graph was freed",
         .fix = "pass retain_graph=true to the first backward"});
  }
  variable_list input_gradients;
  variable_list result = group_->backward(
      *region_, gradients, torch::autograd::get_current_graph_task_keep_graph(),
      input_gradients);
  result.insert(result.end(), input_gradients.begin(), input_gradients.end());
  return result;
}

std::vector<Tensor> ReplicaGroup::backward(
    Region& region, const std::vector<Tensor>& output_gradients,
    bool keep_graph, std::vector<Tensor>& input_gradients) {
  check_build(region);
  const auto chunks = static_cast<int64_t>(region.outputs.size());
  // [shard][output]: the part of each output's gradient that is the shard's.
  std::vector<variable_list> parts(region.outputs.size());
  for (size_t o = 0; o < output_gradients.size(); ++o) {
    int64_t begin = 0;
    for (size_t s = 0; s < parts.size(); ++s) {
      const Tensor& output = region.outputs[s][o];
      if (!output_gradients[o].defined()) {
        parts[s].emplace_back();
      } else if (output.dim() == 0) {
        parts[s].push_back(output_gradients[o][static_cast<int64_t>(s)]);
      } else {
        const int64_t size = output.size(options_.dim());
        parts[s].push_back(
            output_gradients[o].narrow(options_.dim(), begin, size));
        begin += size;
      }
    }
  }

  std::vector<std::vector<PartialSum>> partials(workers_.size());
  std::vector<std::vector<Tensor>> chunk_gradients(region.outputs.size());
  std::vector<std::vector<OtherLeaf>> others(region.outputs.size());
  worker_phases_.assign(workers_.size(), {});
  const auto backward_shard = [&](size_t worker, int64_t shard,
                                  Replica& replica) {
    const Stopwatch watch;
    const TraceSpan span("backward", TraceCategory::kCompute, shard);
    const auto s = static_cast<size_t>(shard);
    variable_list gradients;
    for (const Tensor& part : parts[s]) {
      gradients.push_back(part.defined() ? to_device(part, replica.device())
                                         : Tensor());
    }
    ShardGradients result =
        shard_backward(region.outputs[s], gradients, keep_graph,
                       {replica, unique_, parameters_, region.input_leaves[s]});
    append_partial(partials[worker],
                   {shard, shard + 1, std::move(result.parameters)}, chunks);
    chunk_gradients[s] = std::move(result.inputs);
    others[s] = std::move(result.others);
    worker_phases_[worker].backward_s += watch.seconds();
  };
  for_each_shard(chunks, backward_shard, backward_stream(region));

  input_gradients = region.inputs.gather(chunk_gradients, region.input_leaves,
                                         options_.dim());
  OuterGradients outer;
  outer.add_sums(std::move(others));
  std::move(outer).backward();

  Stopwatch watch;
  const TraceSpan span("reduce", TraceCategory::kCompute);
  StepTotals totals{.samples = 0, .losses = {}};
  Reduction reduction = reduction_of(std::move(partials), chunks, totals);
  std::vector<Tensor> sums = finish(reduction);
  phases_.reduce_s += watch.seconds();
  collect_phases();
  return sums;
}

}  // namespace lockstep
