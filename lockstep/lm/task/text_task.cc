#include "lockstep/lm/task/text_task.h"

#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/lm/text/tokens.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::tasks {
namespace {

using models::LanguageModel;

/// Returns the handle of a model whose forward includes the loss, so the logits
/// of all tokens never exist. Its output is the loss and its weight.
ModuleHandle handle_with_loss(const std::shared_ptr<LanguageModel>& model) {
  ModuleHandle handle = handle_of(model);
  handle.forward = [model](const std::vector<c10::IValue>& arguments) {
    const torch::Tensor hidden = model->hidden(arguments.at(0).toTensor());
    const torch::Tensor targets = arguments.at(1).toTensor();
    const WeightedLoss loss = models::chunked_cross_entropy(
        hidden.flatten(0, 1), model->head(), targets.flatten());
    // Counted in windows instead of tokens: a full window then has the weight
    // of one sample, and float16 needs no other loss scale.
    const auto window =
        static_cast<double>(std::max<int64_t>(targets.size(1), 1));
    return c10::IValue(std::make_tuple(loss.loss, loss.weight / window));
  };
  return handle;
}

}  // namespace

TextTask::TextTask(TextOptions options) : options_(std::move(options)) {
  check(options_.optimizer);
}

TextTask::TextTask(TextOptions options,
                   std::shared_ptr<models::LanguageModel> model,
                   std::shared_ptr<const data::Tokenizer> tokenizer)
    : options_(std::move(options)), model_(std::move(model)) {
  data_ = open_text(options_.data, std::move(tokenizer));
}

void TextTask::go_on_with(const Settings& model) {
  init_ = models::Init::kNone;  // the state of the run is loaded over it
  if (!options_.choice) return;
  CheckpointInfo info;
  info.model = model;
  options_.saved = find_saved_model(info, "the checkpoint to continue from");
  options_.model = choose_model(*options_.choice, options_.saved);
}

void TextTask::begin(const training::TrainOptions& options,
                     const training::Plan& plan, const Settings& saved) {
  seed_ = options.seed();
  rank_ = plan.rank;
  std::string& tokenizer = options_.data.tokenizer;
  if (tokenizer.empty() && saved.contains("tokenizer")) {
    tokenizer = saved.at("tokenizer");
  }
  if (tokenizer.empty() && options_.saved &&
      !has_tokenizer(options_.data.file)) {
    tokenizer = options_.saved->tokenizer;
  }
  if (tokenizer.empty()) tokenizer = "chars";
  if (!options_.saved || rank_ != 0 || !options.log().progress()) return;
  log_info("train",
           fmt::format("the model is that of {}: {}", options_.saved->source,
                       in_words(options_.model)));
}

const TextData& TextTask::data() {
  if (!data_.tokenizer) {
    data_ = open_text(options_.data);
    check_vocabulary();
    if (!options_.saved) {
      options_.model.vocabulary = data_.tokenizer->vocabulary();
    }
  }
  return data_;
}

void TextTask::check_vocabulary() const {
  if (!options_.saved) return;
  const int64_t tokens = data_.tokenizer->vocabulary();
  const int64_t rows = options_.model.vocabulary;
  if (tokens > rows) {
    throw InvalidArgument(
        "data",
        {.code = ErrorCode::kBadOption,
         .what = fmt::format("the tokenizer '{}' does not fit the model of {}",
                             options_.data.tokenizer, options_.saved->source),
         .expected = fmt::format("at most {} tokens", rows),
         .got = fmt::format("{}", tokens),
         .fix = "give the tokenizer that the model was trained with: "
                "--tokenizer PATH"});
  }
  if (tokens == rows || rank_ != 0 || !options_.saved->tokenizer.empty())
    return;
  log_warning(
      "data",
      fmt::format("the tokenizer '{}' has {} tokens, and the model of {} has "
                  "{}: they may stand for other texts; give the tokenizer "
                  "that the model was trained with: --tokenizer PATH",
                  options_.data.tokenizer, tokens, options_.saved->source,
                  rows));
}

std::shared_ptr<const data::BatchSource> TextTask::training_data() {
  return std::make_shared<data::TokenWindows>(
      data().training, data::TokenWindowOptions()
                           .context(options_.model.context)
                           .vocabulary(data().tokenizer->vocabulary())
                           .shift(true)
                           .seed(seed_));
}

std::shared_ptr<const data::BatchSource> TextTask::evaluation_data() {
  if (!data().validation) return nullptr;
  return std::make_shared<data::TokenWindows>(
      data().validation, data::TokenWindowOptions()
                             .context(options_.model.context)
                             .vocabulary(data().tokenizer->vocabulary()));
}

double TextTask::flops_of_sample() const {
  return static_cast<double>(options_.model.context) *
         models::training_flops_of_token(options_.model);
}

Settings TextTask::model() const {
  // The tokenizer is not known before the run begins.
  return data_.tokenizer ? describe(options_.model, data_)
                         : models::to_settings(options_.model);
}

Settings TextTask::settings() const {
  Settings settings = settings_of(options_.optimizer);
  settings["data"] = "text";
  settings[training::kDataDir] =
      std::filesystem::absolute(options_.data.file).lexically_normal().string();
  settings["tokenizer"] = options_.data.tokenizer;
  settings["validation_fraction"] =
      fmt::format("{}", options_.data.validation_fraction);
  return settings;
}

ModuleSource TextTask::make_model(const torch::Device& device) {
  model_ = models::make_language_model(options_.model, init_);
  model_->to(device);
  return engine_module(model_);
}

ModuleSource TextTask::engine_module(
    const std::shared_ptr<LanguageModel>& model) {
  return {.read = [model] { return handle_with_loss(model); },
          .replicate =
              [spec = model->spec()] {
                return handle_with_loss(
                    models::make_language_model(spec, models::Init::kNone));
              }};
}

void TextTask::adapt_weights(const std::string& path,
                             NamedTensors& tensors) const {
  if (is_hugging_face(path)) adapt_hugging_face(path, tensors);
}

std::unique_ptr<training::RunOptimizer> TextTask::make_optimizer(
    const optim::StateFactory& make_state) {
  return tasks::make_optimizer(options_.optimizer, model_->parameters(),
                               make_state);
}

data::Batch TextTask::prepare(data::Batch batch) const {
  // The module computes the loss and takes the targets as an argument.
  return {.inputs = {batch.data, batch.target},
          .samples = batch.samples,
          .total = batch.total};
}

training::LossAndMetrics TextTask::loss(const c10::IValue& output,
                                        const c10::IValue&) const {
  const auto& elements = output.toTupleRef().elements();
  const torch::Tensor loss = elements[0].toTensor();
  const torch::Tensor weight = elements[1].toTensor();
  if (loss.dim() == 0) return WeightedLoss(loss, weight);
  // dp-classic has gathered the losses of the shards.
  const torch::Tensor total = weight.sum();
  const torch::Tensor share =
      weight / torch::where(total.eq(0), torch::ones_like(total), total);
  return WeightedLoss((loss * share.to(loss.scalar_type())).sum(), total);
}

}  // namespace lockstep::tasks
