#include "lockstep/lm/task/text_checkpoint.h"

#include <span>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/loader.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/memory.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/task/model_choice.h"
#include "lockstep/lm/task/text_task.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/step/evaluate.h"

namespace lockstep::tasks {
namespace {

constexpr const char* kTokenizer = "tokenizer";
constexpr const char* kTokenizerPath = "tokenizer_path";
constexpr const char* kTokenizerDigest = "tokenizer_sha256";
// Largest tokenizer that is stored in a manifest.
constexpr size_t kLargestInManifest = 64 << 10;

std::string digest_of(const std::string& text) {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(text)));
  return digest.hex();
}

std::shared_ptr<const data::Tokenizer> tokenizer_of(
    const Settings& model, const std::string& checkpoint) {
  if (const auto whole = model.find(kTokenizer); whole != model.end()) {
    return data::parse_tokenizer(whole->second,
                                 "the tokenizer of " + checkpoint);
  }
  const std::string& path = model.at(kTokenizerPath);
  auto tokenizer = data::open_tokenizer(path);
  const auto digest = model.find(kTokenizerDigest);
  const std::string found = digest_of(tokenizer->to_json());
  if (digest != model.end() && digest->second == found) return tokenizer;
  throw CheckpointError(
      {.code = ErrorCode::kStateMismatch,
       .what = fmt::format("the tokenizer in {} is not that of {}", path,
                           checkpoint),
       .expected = "SHA-256 " +
                   (digest == model.end() ? "" : digest->second.substr(0, 64)),
       .got = found,
       .fix = "put back the tokenizer that the model was trained with"});
}

TextModel load_hugging_face_folder(const std::string& folder) {
  TextModel loaded{.checkpoint = folder, .model = load_hugging_face(folder)};
  const std::string tokenizer = find_saved_model(folder)->tokenizer;
  if (tokenizer.empty()) {
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointMissing,
         .what = folder + " has no tokenizer that Lockstep reads",
         .expected = "tokenizer.json, or vocab.json and merges.txt",
         .got = "neither",
         .fix = "save the model's tokenizer there"});
  }
  loaded.tokenizer = data::open_tokenizer(tokenizer);
  loaded.info.model = models::to_settings(loaded.model->spec());
  loaded.info.parameter_sha256 = parameter_digest(*loaded.model);
  return loaded;
}

TextModel load_checkpoint(const std::string& checkpoint) {
  const CheckpointReader reader = open_checkpoint(checkpoint);
  TextModel loaded{.checkpoint = reader.path(), .info = reader.info()};
  if (!is_of_text(loaded.info)) {
    const auto name = loaded.info.model.find("name");
    throw CheckpointError(
        {.code = ErrorCode::kUnknownName,
         .what = loaded.checkpoint + " is not of a language model",
         .expected = "a checkpoint of `lockstep train --data text`",
         .got = name == loaded.info.model.end() ? "a model without a name"
                                                : name->second.substr(0, 60)});
  }
  loaded.tokenizer = tokenizer_of(loaded.info.model, checkpoint);
  loaded.model = reader.make([&] {
    return models::make_language_model(
        models::language_spec_from_settings(loaded.info.model),
        models::Init::kNone);
  });
  reader.load(*loaded.model);
  return loaded;
}

}  // namespace

Settings describe(const models::LanguageModelSpec& spec, const TextData& data) {
  Settings settings = models::to_settings(spec);
  std::string json = data.tokenizer->to_json();
  if (json.size() <= kLargestInManifest || data.tokenizer_path.empty()) {
    settings[kTokenizer] = std::move(json);
  } else {
    settings[kTokenizerPath] = data.tokenizer_path;
    settings[kTokenizerDigest] = digest_of(json);
  }
  return settings;
}

bool is_of_text(const CheckpointInfo& info) {
  return info.model.contains("architecture") &&
         (info.model.contains(kTokenizer) ||
          info.model.contains(kTokenizerPath));
}

TextModel load_text_model(const std::string& path) {
  TextModel loaded = is_hugging_face(path) ? load_hugging_face_folder(path)
                                           : load_checkpoint(path);
  if (loaded.tokenizer->vocabulary() <= loaded.model->spec().vocabulary) {
    return loaded;
  }
  throw CheckpointError(
      {.code = ErrorCode::kCheckpointDamaged,
       .what = loaded.checkpoint + ": its tokenizer does not fit its model",
       .expected =
           fmt::format("at most {} tokens", loaded.model->spec().vocabulary),
       .got = fmt::format("{}", loaded.tokenizer->vocabulary())});
}

TextSpec text_of(const CheckpointInfo& info) {
  using training::setting_of;
  TextSpec spec;
  spec.file = setting_of(info, training::kDataDir);
  spec.tokenizer = setting_of(info, "tokenizer");
  const auto part =
      parse_number<double>(setting_of(info, "validation_fraction"));
  if (setting_of(info, "data") == "text" && !spec.file.empty() && part) {
    spec.validation_fraction = *part;
    return spec;
  }
  throw CheckpointError(
      {.code = ErrorCode::kBadOption,
       .what = "the checkpoint does not say what it was trained on",
       .expected = "a checkpoint of `lockstep train --data text`",
       .got = "one that another program saved",
       .fix = "name the text: --data text --data-file FILE"});
}

TextEvalReport evaluate_text(const TextEvalOptions& options) {
  install_accounting_allocator();
  const Stopwatch watch;
  const TextModel loaded = load_text_model(options.checkpoint);
  TextEvalReport report{.checkpoint = loaded.checkpoint, .info = loaded.info};
  loaded.model->to(torch_device(options.devices.front()));
  TextTask task({.model = loaded.model->spec(), .data = options.data},
                loaded.model, loaded.tokenizer);
  const auto source = task.evaluation_data();
  if (source == nullptr) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "there is nothing of the text to evaluate on",
                 .expected = "a --val-fraction above 0",
                 .got = "0",
                 .fix = "give one: --val-fraction 0.1"});
  }
  data::Loader loader(source, data::LoaderOptions()
                                  .batch_size(options.batch_size)
                                  .workers(options.loader_workers));
  Engine engine(TextTask::engine_module(loaded.model), options.devices,
                DataParallelOptions());
  const AutocastScope precision(torch_device(options.devices.front()).type(),
                                training::autocast_type(options.precision));
  int64_t done = 0;
  report.test = training::evaluate(engine, task, loader, [&] {
    if (options.on_batch) options.on_batch(done++, loader.batches());
    return false;
  });
  report.tokens = report.test.samples * loaded.model->spec().context;
  report.seconds = watch.seconds();
  return report;
}

}  // namespace lockstep::tasks
