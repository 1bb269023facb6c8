#pragma once

#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/workload.h"

namespace lockstep::tasks {

/// Measures a model for images of 3 x 32 x 32, or the mlp, which takes vectors.
class ImageWorkload : public Workload {
 public:
  explicit ImageWorkload(ImageOptions options);

  std::string model() const override;
  const OptimizerOptions& optimizer() const override;
  std::unique_ptr<training::Task> make_task() const override;
  std::shared_ptr<models::Model> make_model(
      const training::Plan& plan) const override;
  std::pair<torch::Tensor, torch::Tensor> random_samples(
      const training::Plan& plan, int64_t samples) const override;

 private:
  bool is_channels_last(const training::Plan& plan) const;

  ImageOptions options_;
};

}  // namespace lockstep::tasks
