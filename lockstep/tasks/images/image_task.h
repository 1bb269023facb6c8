#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"
#include "lockstep/tasks/optimizer_options.h"
#include "lockstep/train/task.h"

namespace lockstep::tasks {

/// Options for training a classifier of images.
struct ImageOptions {
  models::ModelSpec model;
  data::DataSpec data;
  /// Random crop and, if the dataset allows it, horizontal flip.
  bool augment = true;
  /// Memory format of the images; nothing: the faster one.
  std::optional<bool> channels_last = false;
  OptimizerOptions optimizer;
};

/// Trains one of Lockstep's models to classify images, with cross entropy. The
/// metric is the accuracy.
class ImageTask : public training::Task {
 public:
  /// Throws InvalidArgument for invalid options.
  explicit ImageTask(ImageOptions options);

  void begin(const training::TrainOptions& options, const training::Plan& plan,
             const Settings& saved) override;
  void go_on_with(const Settings& model) override;
  std::shared_ptr<const data::BatchSource> training_data() override;
  std::shared_ptr<const data::BatchSource> evaluation_data() override;
  Settings model() const override;
  Settings settings() const override;
  ModuleSource make_model(const torch::Device& device) override;
  std::unique_ptr<training::RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override;
  training::LossAndMetrics loss(const c10::IValue& output,
                                const c10::IValue& target) const override;

 private:
  ImageOptions options_;
  bool is_channels_last_ = false;
  models::Init init_ = models::Init::kRandom;
  uint64_t seed_ = 0;
  std::shared_ptr<models::Model> model_;
};

}  // namespace lockstep::tasks
