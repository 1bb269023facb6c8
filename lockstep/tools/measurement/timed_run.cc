#include "lockstep/tools/measurement/timed_run.h"

#include "lockstep/base/chunk.h"

namespace lockstep::tools {

data::Batch random_batch(const TimedRun& run, const training::Plan& plan) {
  const training::TrainOptions& options = run.train;
  torch::manual_seed(options.seed());
  const int64_t samples = options.batch_size();
  const auto [inputs, targets] = run.work->random_samples(plan, samples);
  const ShardRange own = shards_of_worker(plan.rank, plan.ranks, plan.shards);
  const SampleRange part = samples_of(own, samples, plan.shards);
  return {.data = inputs.narrow(0, part.first, part.count()),
          .target = targets.narrow(0, part.first, part.count()),
          .samples = part.count(),
          .total = samples};
}

}  // namespace lockstep::tools
