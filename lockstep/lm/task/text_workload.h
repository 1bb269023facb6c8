#pragma once

#include "lockstep/lm/task/text_task.h"
#include "lockstep/tasks/workload.h"

namespace lockstep::tasks {

/// Measures a language model on random tokens.
class TextWorkload : public Workload {
 public:
  explicit TextWorkload(TextOptions options);

  std::string model() const override;
  const OptimizerOptions& optimizer() const override;
  std::unique_ptr<training::Task> make_task() const override;
  std::shared_ptr<models::Model> make_model(
      const training::Plan& plan) const override;
  std::pair<torch::Tensor, torch::Tensor> random_samples(
      const training::Plan& plan, int64_t samples) const override;
  std::shared_ptr<const Workload> recomputing() const override;

 private:
  TextOptions options_;
};

}  // namespace lockstep::tasks
