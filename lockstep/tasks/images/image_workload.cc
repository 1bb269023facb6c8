#include "lockstep/tasks/images/image_workload.h"

#include "lockstep/tasks/images/memory_format.h"

namespace lockstep::tasks {

ImageWorkload::ImageWorkload(ImageOptions options)
    : options_(std::move(options)) {}

std::string ImageWorkload::model() const { return options_.model.name; }

const OptimizerOptions& ImageWorkload::optimizer() const {
  return options_.optimizer;
}

std::unique_ptr<training::Task> ImageWorkload::make_task() const {
  return std::make_unique<ImageTask>(options_);
}

std::shared_ptr<models::Model> ImageWorkload::make_model(
    const training::Plan& plan) const {
  return make_laid_out(options_.model, is_channels_last(plan));
}

std::pair<torch::Tensor, torch::Tensor> ImageWorkload::random_samples(
    const training::Plan& plan, int64_t samples) const {
  const models::ModelSpec& model = options_.model;
  torch::Tensor inputs = model.name == "mlp"
                             ? torch::randn({samples, model.in_features})
                             : torch::randn({samples, 3, 32, 32});
  if (is_channels_last(plan) && inputs.dim() == 4) {
    inputs = inputs.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  return {inputs, torch::randint(model.classes, {samples})};
}

bool ImageWorkload::is_channels_last(const training::Plan& plan) const {
  return options_.channels_last.value_or(
      prefers_channels_last(options_.model, plan.devices));
}

}  // namespace lockstep::tasks
