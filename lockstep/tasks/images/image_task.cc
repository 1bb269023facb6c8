#include "lockstep/tasks/images/image_task.h"

#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/data/image_source.h"
#include "lockstep/models/model_settings.h"
#include "lockstep/tasks/images/memory_format.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tasks {
namespace {

/// Fits a model to the data: its classes, its channels and, for an mlp, its
/// inputs.
void fit(models::ModelSpec& model, const data::Dataset& dataset) {
  model.classes = dataset.classes();
  model.channels = dataset.channels();
  model.in_features = dataset.channels() * dataset.height() * dataset.width();
}

}  // namespace

ImageTask::ImageTask(ImageOptions options) : options_(std::move(options)) {
  check(options_.optimizer);
}

void ImageTask::begin(const training::TrainOptions& options,
                      const training::Plan& plan, const Settings& saved) {
  const auto layout = saved.find("channels_last");
  const bool preferred =
      layout != saved.end()
          ? layout->second == "true"
          : prefers_channels_last(options_.model, plan.devices);
  is_channels_last_ = options_.channels_last.value_or(preferred);
  seed_ = options.seed();
  // Only one rank warns of an incomplete dataset.
  options_.data.warns = plan.rank == 0;
}

// The state of the run is loaded over the weights. A rank that replaces a lost
// one would draw them for as long as a few steps take.
void ImageTask::go_on_with(const Settings& /*model*/) {
  init_ = models::Init::kNone;
}

std::shared_ptr<const data::BatchSource> ImageTask::training_data() {
  const auto dataset = data::open(options_.data, data::Split::kTrain);
  fit(options_.model, *dataset);
  return std::make_shared<data::ImageSource>(
      dataset, data::ImageOptions()
                   .augment(options_.augment)
                   .channels_last(is_channels_last_)
                   .seed(seed_));
}

std::shared_ptr<const data::BatchSource> ImageTask::evaluation_data() {
  return std::make_shared<data::ImageSource>(
      data::open(options_.data, data::Split::kTest),
      data::ImageOptions().channels_last(is_channels_last_));
}

Settings ImageTask::model() const {
  return models::to_settings(options_.model);
}

Settings ImageTask::settings() const {
  Settings settings = settings_of(options_.optimizer);
  settings["channels_last"] = fmt::format("{}", is_channels_last_);
  settings["augment"] = fmt::format("{}", options_.augment);
  settings["data"] = options_.data.name;
  if (options_.data.name == "image-folder") {
    settings["image_size"] = fmt::format("{}", options_.data.image_size);
  }
  if (!options_.data.dir.empty()) {
    settings[training::kDataDir] =
        std::filesystem::absolute(options_.data.dir).string();
  }
  return settings;
}

ModuleSource ImageTask::make_model(const torch::Device& device) {
  model_ = make_laid_out(options_.model, is_channels_last_, init_);
  model_->to(device);
  return module_of(model_, options_.model, is_channels_last_);
}

std::unique_ptr<training::RunOptimizer> ImageTask::make_optimizer(
    const optim::StateFactory& make_state) {
  return tasks::make_optimizer(options_.optimizer, model_->parameters(),
                               make_state);
}

training::LossAndMetrics ImageTask::loss(const c10::IValue& output,
                                         const c10::IValue& target) const {
  const torch::Tensor logits = output.toTensor();
  const torch::Tensor classes = target.toTensor();
  return {torch::nn::functional::cross_entropy(logits, classes),
          {{"accuracy", training::accuracy(logits, classes)}}};
}

}  // namespace lockstep::tasks
