#include "lockstep/train/evaluate.h"

#include <utility>
#include <vector>

#include "lockstep/base/chunk.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/train/shard_metrics.h"

namespace lockstep::train {
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

}  // namespace

TestReport evaluate(Engine& engine, const Task& task, data::Loader& loader,
                    const std::function<bool()>& stop, const World& world) {
  const EvalScope scope(engine.group().original());
  const int64_t shards = engine.group().shards();
  // An engine of this rank's own knows of its shards alone.
  const bool is_local =
      world.size() > 1 && engine.group().options().world().size() == 1;
  const int64_t first_shard = is_local ? world.rank() * shards : 0;
  ShardMetrics sums(world, is_local ? world.size() * shards : shards);
  int64_t samples = 0;
  bool is_stopped = false;
  loader.begin(0);
  while (auto loaded = loader.next()) {
    control::enter(control::Phase::kEvaluate);
    is_stopped = stop && stop();
    if (is_stopped) break;
    const data::Batch batch = task.prepare(*std::move(loaded));
    samples += batch.samples;
    if (batch.samples == 0) continue;  // the last may have none for this rank
    const int64_t cut = is_local ? batch.samples : batch.total;
    const auto sizes = chunk_sizes(cut, shards);
    engine.evaluate(batch.inputs, batch.target, cut,
                    [&](const c10::IValue& output, const c10::IValue& target) {
                      const int64_t shard = current_shard();
                      sums.add(first_shard + shard,
                               sizes[static_cast<size_t>(shard)],
                               task.loss(output, target), /*with_loss=*/true);
                    });
  }
  std::vector<double> totals{static_cast<double>(samples),
                             is_stopped ? 1.0 : 0.0};
  Metrics metrics = sums.reduce(totals);
  if (totals[1] > 0 || totals[0] == 0) return {};
  for (auto& [name, sum] : metrics) sum /= totals[0];
  return {.metrics = std::move(metrics),
          .samples = static_cast<int64_t>(totals[0])};
}

}  // namespace lockstep::train
