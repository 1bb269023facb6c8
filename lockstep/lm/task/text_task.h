#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/lm/models/language_model.h"
#include "lockstep/lm/task/model_choice.h"
#include "lockstep/lm/task/text_data.h"
#include "lockstep/tasks/optimizer_options.h"
#include "lockstep/train/task.h"

namespace lockstep::tasks {

/// Options for training a language model.
struct TextOptions {
  /// The vocabulary comes from the data's tokenizer, unless `saved` has one.
  models::LanguageModelSpec model;
  TextSpec data;
  OptimizerOptions optimizer;
  /// The model from whose weights the run starts. `model` has its sizes.
  std::optional<SavedModel> saved{};
  /// The choices that led to `model`. A resumed run chooses again, by the sizes
  /// in its checkpoint. Nothing: `model` already has the right sizes.
  std::optional<ModelChoice> choice{};
};

/// Trains a language model to predict the next token, with cross entropy in
/// nats per token. A sample is a window of as many tokens as the model's
/// context.
class TextTask : public training::Task {
 public:
  /// Throws InvalidArgument for invalid options.
  explicit TextTask(TextOptions options);
  /// Makes a task to evaluate an existing model with its tokenizer.
  TextTask(TextOptions options, std::shared_ptr<models::LanguageModel> model,
           std::shared_ptr<const data::Tokenizer> tokenizer);

  void go_on_with(const Settings& model) override;
  void begin(const training::TrainOptions& options, const training::Plan& plan,
             const Settings& saved) override;
  std::shared_ptr<const data::BatchSource> training_data() override;
  std::shared_ptr<const data::BatchSource> evaluation_data() override;
  int64_t tokens_of_sample() const override { return options_.model.context; }
  double flops_of_sample() const override;
  Settings model() const override;
  Settings settings() const override;
  ModuleSource make_model(const torch::Device& device) override;
  void adapt_weights(const std::string& path,
                     NamedTensors& tensors) const override;
  std::unique_ptr<training::RunOptimizer> make_optimizer(
      const optim::StateFactory& make_state) override;
  data::Batch prepare(data::Batch batch) const override;
  training::LossAndMetrics loss(const c10::IValue& output,
                                const c10::IValue& target) const override;

  /// Returns the model as the engine runs it: it takes the ids and the targets,
  /// both (N, T) int64, and returns the loss and its weight, which is the
  /// number of targets divided by T. Targets of -100 do not count.
  static ModuleSource engine_module(
      const std::shared_ptr<models::LanguageModel>& model);

 private:
  const TextData& data();
  void check_vocabulary() const;

  TextOptions options_;
  uint64_t seed_ = 0;
  int rank_ = 0;
  models::Init init_ = models::Init::kRandom;
  TextData data_;
  std::shared_ptr<models::LanguageModel> model_;
};

}  // namespace lockstep::tasks
