#include "lockstep/lm/task/text_workload.h"

namespace lockstep::tasks {

TextWorkload::TextWorkload(TextOptions options)
    : options_(std::move(options)) {}

std::string TextWorkload::model() const { return options_.model.name; }

const OptimizerOptions& TextWorkload::optimizer() const {
  return options_.optimizer;
}

std::unique_ptr<training::Task> TextWorkload::make_task() const {
  return std::make_unique<TextTask>(options_);
}

std::shared_ptr<models::Model> TextWorkload::make_model(
    const training::Plan&) const {
  return models::make_language_model(options_.model);
}

std::pair<torch::Tensor, torch::Tensor> TextWorkload::random_samples(
    const training::Plan&, int64_t samples) const {
  const auto ids = torch::randint(options_.model.vocabulary,
                                  {2, samples, options_.model.context});
  return {ids[0], ids[1]};
}

std::shared_ptr<const Workload> TextWorkload::recomputing() const {
  if (options_.model.recomputes_activations) return nullptr;
  TextOptions options = options_;
  options.model.recomputes_activations = true;
  return std::make_shared<TextWorkload>(std::move(options));
}

}  // namespace lockstep::tasks
