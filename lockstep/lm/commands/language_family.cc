#include "lockstep/lm/commands/language_family.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/format.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/task/model_choice.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/lm/task/text_task.h"
#include "lockstep/lm/task/text_workload.h"

namespace lockstep::cli {
namespace {

class LanguageFamily : public ModelFamily {
 public:
  std::string name() const override { return "language models"; }
  std::vector<std::string> models() const override {
    return models::language_names();
  }
  std::vector<std::string> datasets() const override { return {"text"}; }
  std::string models_help() const override {
    return fmt::format(
        "text: {}; leave it out if --init-from has a language "
        "model",
        fmt::join(models::language_names(), ", "));
  }
  std::string datasets_help() const override { return "text"; }

  std::vector<Option> options(OptionKind kind) override {
    if (kind == OptionKind::kModel) return model_options();
    if (kind == OptionKind::kData) return data_options();
    return {};
  }

  OptimizerDefaults optimizer_defaults() const override {
    return {.optimizer = tasks::OptimizerKind::kAdamW,
            .adamw_decay = 0.1,
            .beta2 = 0.99,
            .decays_matrices_alone = true,
            .final_lr_fraction = 0.1};
  }
  int64_t eval_batch_size() const override {
    return tasks::TextEvalOptions().batch_size;
  }

  bool owns(const CheckpointInfo& info) const override {
    return tasks::is_of_text(info);
  }
  bool has_model(const std::string& folder) const override {
    return is_hugging_face(folder);
  }
  std::optional<std::string> begin_with(const std::string& path) override {
    saved_ = tasks::find_saved_model(path);
    if (!saved_) return std::nullopt;
    return saved_->source;
  }

  TrainingRun make_run(const TrainChoice& choice) const override {
    const tasks::ModelChoice model = model_choice(choice.model);
    const tasks::TextOptions text{.model = choose_model(model),
                                  .data = text_spec(choice.data),
                                  .optimizer = choice.optimizer,
                                  .saved = saved_,
                                  .choice = model};
    return {.task = std::make_shared<tasks::TextTask>(text),
            .model = text.model.name,
            .data = file_};
  }

  EvalResult evaluate(const EvalChoice& choice) const override {
    if (tokenizer_) {
      throw BadUsage(
          "[usage] eval takes no --tokenizer; leave it out: the checkpoint has "
          "its own");
    }
    tasks::TextEvalOptions options;
    options.checkpoint = choice.checkpoint;
    options.data = choose_text(choice);
    options.devices = choice.devices;
    options.batch_size = choice.batch_size.value_or(options.batch_size);
    options.loader_workers = choice.loader_workers;
    options.precision = choice.precision;
    options.on_batch = choice.on_batch;
    const tasks::TextEvalReport report = tasks::evaluate_text(options);
    const double loss = report.test.metrics.at("loss");
    return {.checkpoint = report.checkpoint,
            .info = report.info,
            .data = fmt::format("the last {:g} % of {}",
                                100 * options.data.validation_fraction,
                                options.data.file),
            .figures = {{"loss", loss},
                        {"perplexity", std::exp(loss)},
                        {"samples", report.test.samples},
                        {"tokens", report.tokens}},
            .lines = {"Test Loss: " + format_number(loss),
                      "Perplexity: " + format_number(std::exp(loss)),
                      fmt::format("Tokens: {}", report.tokens)},
            .seconds = report.seconds};
  }

  std::shared_ptr<const tasks::Workload> make_workload(
      const std::string& model,
      const tasks::OptimizerOptions& optimizer) const override {
    std::optional<std::string> named;
    if (!saved_) named = model;
    return std::make_shared<tasks::TextWorkload>(
        tasks::TextOptions{.model = choose_model(model_choice(named)),
                           .data = {},
                           .optimizer = optimizer});
  }

 private:
  std::vector<Option> model_options() {
    return {{.name = "--context",
             .value = &context_,
             .help = "language models: context length in tokens; a sample has "
                     "this many",
             .default_text = "that of the model, or of --init-from",
             .group = kModelAndData,
             .topic = kMoreAboutModel,
             .range = at_least(1)},
            {.name = "--dropout",
             .value = &dropout_,
             .help = "gpt: dropout probability",
             .default_text = "0",
             .group = kModelAndData,
             .topic = kMoreAboutModel,
             .range = Range{.least = 0, .most = 1, .excludes_most = true}},
            {.name = "--recompute",
             .value = &recompute_,
             .help = "language models: recompute activations in the backward "
                     "pass, which takes a third more time and much less memory",
             .group = kModelAndData,
             .topic = kMoreAboutModel}};
  }

  std::vector<Option> data_options() {
    return {{.name = "--data-file",
             .value = &file_,
             .help = "text: a UTF-8 file, or a folder of tokens (`lockstep "
                     "tokenize`, nanoGPT, llm.c)",
             .type = "PATH",
             .default_text = "none",
             .group = kModelAndData},
            {.name = "--tokenizer",
             .value = &tokenizer_,
             .help = "text: chars (a token for each character that occurs), "
                     "bytes, a tokenizer.json, or a folder with one",
             .type = "NAME|PATH",
             .default_text = "that of --init-from, or chars",
             .group = kModelAndData,
             .topic = kMoreAboutModel},
            {.name = "--val-fraction",
             .value = &validation_fraction_,
             .help = "text: fraction of the file, at its end, to evaluate on",
             .default_text = "0.1",
             .group = kModelAndData,
             .topic = kMoreAboutModel,
             .range = at_least(0)}};
  }

  tasks::ModelChoice model_choice(
      const std::optional<std::string>& model) const {
    return {.name = model,
            .context = context_,
            .dropout = dropout_,
            .recomputes_activations = recompute_};
  }

  models::LanguageModelSpec choose_model(
      const tasks::ModelChoice& choice) const {
    const auto spec = tasks::choose_model(choice, saved_);
    const double dropout = dropout_.value_or(0);
    if (dropout > 0 && spec.architecture == models::Architecture::kLlama) {
      throw BadUsage("[usage] --dropout is for gpt models, got --model " +
                     spec.name);
    }
    return spec;
  }

  tasks::TextSpec text_spec(const std::string& data) const {
    if (file_.empty()) {
      throw BadUsage(
          fmt::format("[usage] {} needs --data-file FILE, a UTF-8 text",
                      data.empty() ? "a language model" : "--data " + data));
    }
    tasks::TextSpec spec;
    spec.file = file_;
    spec.tokenizer = tokenizer_.value_or("");
    spec.validation_fraction =
        validation_fraction_.value_or(spec.validation_fraction);
    return spec;
  }

  // Returns the text of the checkpoint, except for the given options.
  tasks::TextSpec choose_text(const EvalChoice& choice) const {
    if (!file_.empty()) return text_spec(choice.data);
    auto spec = tasks::text_of(choice.info);
    spec.validation_fraction =
        validation_fraction_.value_or(spec.validation_fraction);
    return spec;
  }

  std::optional<int64_t> context_;
  std::optional<double> dropout_;
  bool recompute_ = false;
  std::string file_;
  std::optional<std::string> tokenizer_;
  std::optional<double> validation_fraction_;
  std::optional<tasks::SavedModel> saved_;  // see begin_with()
};

}  // namespace

std::shared_ptr<ModelFamily> make_language_family() {
  return std::make_shared<LanguageFamily>();
}

}  // namespace lockstep::cli
