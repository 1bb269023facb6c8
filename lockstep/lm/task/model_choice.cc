#include "lockstep/lm/task/model_choice.h"

#include <array>
#include <filesystem>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/lm/text/tokenizer.h"

namespace lockstep::tasks {
namespace {

namespace fs = std::filesystem;
using models::Architecture;
using models::LanguageModelSpec;

/// Returns the path of the tokenizer in a Hugging Face folder.
std::string find_tokenizer(const std::string& folder) {
  // `lockstep export` writes the first one for Lockstep, and a tokenizer.json
  // for other programs.
  constexpr std::array kFiles{"lockstep_tokenizer.json", "tokenizer.json",
                              "vocab.json"};
  for (const std::string file : kFiles) {
    if (!fs::exists(fs::path(folder) / file)) continue;
    // GPT-2's vocab.json and merges.txt are opened through their folder.
    const std::string path =
        file == "vocab.json" ? folder : (fs::path(folder) / file).string();
    try {
      data::open_tokenizer(path);
      return path;
    } catch (const Error& error) {
      warn_once("tokenizer of " + path, "data",
                fmt::format("the tokenizer of {} is not used: {}", folder,
                            text_of(error)));
      return "";
    }
  }
  return "";
}

std::optional<SavedModel> find_in_checkpoint(const std::string& path) {
  try {
    const auto manifest = parse_manifest(path, read_manifest_text(path));
    auto found = find_saved_model(manifest.info, path);
    // Dropout belongs to the training run, not to the weights.
    if (found) found->spec.dropout = 0;
    return found;
  } catch (const Error&) {
    // Loading it will report the error.
    return std::nullopt;
  }
}

const char* name_of(Architecture architecture) {
  return architecture == Architecture::kLlama ? "llama" : "gpt2";
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got, const std::string& fix) {
  throw InvalidArgument("models", {.code = ErrorCode::kBadOption,
                                   .what = what,
                                   .expected = expected,
                                   .got = got,
                                   .fix = fix});
}

void check_agreement(const ModelChoice& choice, const SavedModel& saved) {
  if (choice.name) {
    const auto wanted = models::language_spec(*choice.name).architecture;
    if (wanted != saved.spec.architecture) {
      refuse(
          fmt::format("--model {} contradicts {}", *choice.name, saved.source),
          fmt::format("a {} model", name_of(saved.spec.architecture)),
          fmt::format("a {} model", name_of(wanted)),
          "leave out --model: the weights say what it is");
    }
  }
  if (choice.context && *choice.context != saved.spec.context) {
    refuse(fmt::format("--context {} contradicts {}", *choice.context,
                       saved.source),
           fmt::format("a context of {}", saved.spec.context),
           fmt::format("{}", *choice.context),
           "leave out --context: the weights say it");
  }
}

}  // namespace

std::optional<SavedModel> find_saved_model(const CheckpointInfo& info,
                                           const std::string& source) {
  if (!is_of_text(info)) return std::nullopt;
  return SavedModel{.source = source,
                    .spec = models::language_spec_from_settings(info.model),
                    .tokenizer = ""};
}

std::optional<SavedModel> find_saved_model(const std::string& path) {
  if (path.empty()) return std::nullopt;
  if (is_hugging_face(path)) {
    return SavedModel{.source = (fs::path(path) / "config.json").string(),
                      .spec = read_hugging_face_config(path),
                      .tokenizer = find_tokenizer(path)};
  }
  if (const auto found = find_in_checkpoint(path)) return found;
  for (const SavedCheckpoint& saved : list_checkpoints(path)) {
    if (const auto found = find_in_checkpoint(saved.path)) return found;
  }
  return std::nullopt;
}

LanguageModelSpec choose_model(const ModelChoice& choice,
                               const std::optional<SavedModel>& saved) {
  LanguageModelSpec spec;
  if (saved) {
    check_agreement(choice, *saved);
    spec = saved->spec;
    spec.name = choice.name.value_or(spec.name);
  } else {
    spec = models::language_spec(choice.name.value_or(spec.name));
    spec.context = choice.context.value_or(spec.context);
  }
  spec.dropout = choice.dropout.value_or(spec.dropout);
  spec.recomputes_activations = choice.recomputes_activations;
  return spec;
}

std::string in_words(const LanguageModelSpec& spec) {
  return fmt::format("{}, {}, {}, width {}, context {}, vocabulary {}, {}",
                     name_of(spec.architecture), counted(spec.layers, "layer"),
                     counted(spec.heads, "head"), spec.width, spec.context,
                     spec.vocabulary,
                     spec.is_tied ? "head tied to the table of the tokens"
                                  : "head of its own");
}

}  // namespace lockstep::tasks
