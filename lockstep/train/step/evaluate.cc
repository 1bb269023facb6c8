#include "lockstep/train/step/evaluate.h"

#include <utility>
#include <vector>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/train/step/shard_metrics.h"

namespace lockstep::training {
namespace {

class EvalScope {
 public:
  explicit EvalScope(const ModuleHandle& model)
      : model_(model), modes_(model.modes()) {
    model_.set_modes(std::vector<bool>(modes_.size(), false));
  }
  ~EvalScope() { model_.set_modes(modes_); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  const ModuleHandle model_;
  const std::vector<bool> modes_;
};

/// `is_sum`: the loss is a sum, so its weight is not used.
std::vector<Metric> metrics_with_loss(const LossAndMetrics& values,
                                      bool is_sum) {
  std::vector<Metric> metrics = values.metrics;
  metrics.emplace_back("loss", values.loss,
                       is_sum ? torch::ones({}) : values.weight);
  return metrics;
}

}  // namespace

TestReport evaluate(Engine& engine, const Task& task, data::Loader& loader,
                    const std::function<bool()>& stop,
                    const ProcessGroup& world) {
  const EvalScope scope(engine.group().original());
  const int64_t shards = engine.group().shards();
  // A local engine knows only this rank's shards.
  const bool is_local =
      world.size() > 1 && engine.group().options().process_group().size() == 1;
  const int64_t first_shard = is_local ? world.rank() * shards : 0;
  ShardMetrics sums(world, is_local ? world.size() * shards : shards);
  const bool is_sum = task.loss_reduction() == LossReduction::kSum;
  int64_t samples = 0;
  bool is_stopped = false;
  loader.set_epoch(0);
  for (data::Batch& loaded : loader) {
    control::enter(control::Phase::kEvaluate);
    is_stopped = stop && stop();
    if (is_stopped) break;
    const data::Batch batch = task.prepare(std::move(loaded));
    samples += batch.samples;
    if (batch.samples == 0) continue;  // possible in the last batch
    const int64_t cut = is_local ? batch.samples : batch.total;
    const auto sizes = chunk_sizes(cut, shards);
    engine.evaluate(batch.arguments(), batch.any_target(), cut,
                    [&](const c10::IValue& output, const c10::IValue& target) {
                      const int64_t shard = current_shard();
                      const LossAndMetrics values = task.loss(output, target);
                      sums.add(first_shard + shard,
                               sizes[static_cast<size_t>(shard)],
                               metrics_with_loss(values, is_sum));
                    });
  }
  std::vector<double> totals{static_cast<double>(samples),
                             is_stopped ? 1.0 : 0.0};
  const MetricSums summed = sums.reduce(totals);
  if (totals[1] > 0 || totals[0] == 0) return {};
  const MetricSum& loss = summed.at("loss");
  if (loss.weight == 0) {
    throw TrainError({.code = ErrorCode::kEmptyBatch,
                      .what = "the losses of the evaluation data have the "
                              "weight 0 in total, so they have no mean",
                      .expected = "at least one target that counts",
                      .fix = "evaluate on other data, or on none"});
  }
  TestReport report{.metrics = means_of(summed),
                    .samples = static_cast<int64_t>(totals[0])};
  if (is_sum) report.metrics["loss"] = loss.sum;
  return report;
}

}  // namespace lockstep::training
