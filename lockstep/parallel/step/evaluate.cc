#include "lockstep/parallel/step/evaluate.h"

#include <torch/types.h>

#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

std::vector<int64_t> evaluate(ReplicaGroup& group,
                              const std::vector<IValue>& inputs,
                              const IValue& target, int64_t all_samples,
                              const ShardVisit& visit) {
  const torch::NoGradGuard no_grad;
  const StepBatch batch =
      cut_batch(group, inputs, target, all_samples, /*needs_graph=*/false);
  const DifferentiableInputs& whole = batch.differentiable;
  group.clock().restart();
  group.follow_members_in_evaluation();
  group.begin(batch.shards());
  group.for_each_shard(
      batch.shards(), group.forward_stream(/*trains=*/false),
      [&](size_t worker, int64_t shard, Replica& replica) {
        const IValue& part = batch.parts[batch.part_of(shard)];
        std::vector<Tensor> no_leaves;
        const IValue chunk = whole.cut_from_graph(part, no_leaves);
        const auto [arguments, shard_target] = arguments_and_target(chunk);
        visit(group.forward_shard(worker, shard, replica, arguments),
              shard_target);
        whole.pass_on_writes(part, chunk, group.shards());
      });
  group.finish_buffers(batch.shards());
  return batch.shard_samples;
}

}  // namespace lockstep
