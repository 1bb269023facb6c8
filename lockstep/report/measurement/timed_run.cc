#include "lockstep/report/measurement/timed_run.h"

#include <utility>

#include "lockstep/base/chunk.h"
#include "lockstep/tasks/images/memory_format.h"

namespace lockstep::report {
namespace {

using tasks::ImageOptions;
using tasks::TextOptions;

/// Returns `samples` random inputs and targets.
std::pair<torch::Tensor, torch::Tensor> random_samples(
    const ImageOptions& images, const training::Plan& plan, int64_t samples) {
  const models::ModelSpec& model = images.model;
  torch::Tensor inputs = model.name == "mlp"
                             ? torch::randn({samples, model.in_features})
                             : torch::randn({samples, 3, 32, 32});
  if (is_channels_last(images, plan) && inputs.dim() == 4) {
    inputs = inputs.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  return {inputs, torch::randint(model.classes, {samples})};
}
std::pair<torch::Tensor, torch::Tensor> random_samples(const TextOptions& text,
                                                       const training::Plan&,
                                                       int64_t samples) {
  const auto ids =
      torch::randint(text.model.vocabulary, {2, samples, text.model.context});
  return {ids[0], ids[1]};
}

}  // namespace

bool is_channels_last(const ImageOptions& images, const training::Plan& plan) {
  return images.channels_last.value_or(
      tasks::prefers_channels_last(images.model, plan.devices));
}

data::Batch random_batch(const TimedRun& run, const training::Plan& plan) {
  const training::TrainOptions& options = run.train;
  torch::manual_seed(options.seed());
  const int64_t samples = options.batch_size();
  const auto [inputs, targets] = std::visit(
      [&](const auto& task) { return random_samples(task, plan, samples); },
      run.task);
  const ShardRange own = shards_of_worker(plan.rank, plan.ranks, plan.shards);
  const SampleRange part = samples_of(own, samples, plan.shards);
  return {.data = inputs.narrow(0, part.first, part.count()),
          .target = targets.narrow(0, part.first, part.count()),
          .samples = part.count(),
          .total = samples};
}

std::unique_ptr<training::Task> make_task(const TimedRun& run) {
  if (const auto* text = std::get_if<TextOptions>(&run.task)) {
    return std::make_unique<tasks::TextTask>(*text);
  }
  return std::make_unique<tasks::ImageTask>(std::get<ImageOptions>(run.task));
}

}  // namespace lockstep::report
