#include "lockstep/parallel/step/evaluate.h"

#include "lockstep/parallel/step/shard.h"
#include "lockstep/parallel/step/step_batch.h"

namespace lockstep {

using c10::IValue;

std::vector<int64_t> evaluate(ReplicaGroup& group,
                              const std::vector<IValue>& inputs,
                              const IValue& target, int64_t all_samples,
                              const ShardVisit& visit) {
  const torch::NoGradGuard no_grad;
  const StepBatch batch =
      cut_batch(group, inputs, target, all_samples, /*needs_graph=*/false);
  group.clock().restart();
  group.follow_members_in_evaluation();
  group.begin(batch.shards());
  group.for_each_shard(batch.shards(), group.forward_stream(/*trains=*/false),
                       [&](size_t worker, int64_t shard, Replica& replica) {
                         Shard pass(group, batch, worker, shard, replica,
                                    Shard::Mode::kForward);
                         pass.forward(pass.part());
                         visit(pass.output(), pass.target());
                         pass.pass_on_writes();
                       });
  group.finish_buffers(batch.shards());
  return batch.shard_samples;
}

}  // namespace lockstep
