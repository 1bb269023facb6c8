#include "lockstep/cli/command_options.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/tasks/images/memory_format.h"

namespace lockstep::cli {
namespace {

void add_model(CLI::App& app, ModelFlags& flags,
               const std::vector<std::string>& names,
               const std::string& description) {
  add_choice(app, "--model", flags.model, names, description)
      ->group("Model and data");
  add_choice(app, "--stem", flags.stem, {"cifar", "imagenet"},
             "resnets: cifar (3x3, for 32x32 images) or imagenet (7x7 "
             "and max-pool)")
      ->group("Model and data");
}

/// Returns the files of a dataset, for an error about a missing --data-dir.
std::string content_of_folder(const std::string& dataset) {
  if (dataset == "cifar10") return "data_batch_*.bin and test_batch.bin";
  if (dataset == "cifar100") return "train.bin and test.bin";
  if (dataset == "image-folder") return "train/CLASS/ and val/CLASS/";
  return "train-images-idx3-ubyte.gz and three more";
}

}  // namespace

void add_model_options(CLI::App& app, ModelFlags& flags,
                       const std::vector<std::string>& names) {
  add_model(app, flags, names, fmt::format("{}", fmt::join(names, ", ")));
}

void add_precision_option(CLI::App& app, std::string& precision) {
  add_choice(app, "--precision", precision, {"fp32", "bf16"},
             "fp32, or bf16: forward and loss under autocast");
}

void add_any_model_options(CLI::App& app, ModelFlags& flags,
                           LanguageModelFlags& language) {
  const auto& texts = models::language_names();
  auto names = models::names();
  names.insert(names.end(), texts.begin(), texts.end());
  add_model(
      app, flags, names,
      fmt::format(
          "images: cnn (small, learns in seconds), mlp, resnet18, resnet34; "
          "text: {}; leave it out if --init-from has a language model",
          fmt::join(texts, ", ")));
  add_count(app, "--context", language.context, {1},
            "language models: context length in tokens; a sample has this many")
      ->default_str("that of the model, or of --init-from")
      ->group("Model and data");
  add_number(app, "--dropout", language.dropout, "gpt: dropout probability")
      ->default_str("0")
      ->check(number(0))
      ->group("Model and data");
  app.add_flag("--recompute", language.recompute,
               "language models: recompute activations in the backward pass, "
               "which takes a third more time and much less memory [no]")
      ->group("Model and data");
}

bool is_language_model(const ModelFlags& flags) {
  const auto& names = models::language_names();
  return std::ranges::find(names, flags.model) != names.end();
}

void check_language_options(const LanguageModelFlags& language,
                            const models::LanguageModelSpec& spec) {
  const double dropout = language.dropout.value_or(0);
  if (dropout > 0 && spec.architecture == models::Architecture::kLlama) {
    throw BadUsage("[usage] --dropout is for gpt models, got --model " +
                   spec.name);
  }
  if (dropout >= 1) {
    throw BadUsage(
        fmt::format("[usage] --dropout must be less than 1, got {}", dropout));
  }
}

models::ModelSpec to_model_spec(const ModelFlags& flags) {
  models::ModelSpec spec;
  spec.name = flags.model;
  spec.stem =
      flags.stem == "imagenet" ? models::Stem::kImageNet : models::Stem::kCifar;
  return spec;
}

void add_checkpoint_option(CLI::App& app, std::string& checkpoint) {
  add_path(app, "--checkpoint", checkpoint,
           "a checkpoint, the --out-dir of a run (its newest checkpoint), or a "
           "Hugging Face folder",
           "DIR")
      ->default_str("required");
}

void add_data_options(CLI::App& app, DataFlags& flags,
                      const std::string& default_text) {
  auto names = data::dataset_names();
  names.push_back("text");
  add_choice(app, "--data", flags.data, names,
             "images: synthetic (built in), cifar10, cifar100, mnist, "
             "fashion-mnist, image-folder (JPEG and PNG); text")
      ->default_str(default_text)
      ->group("Model and data");
  add_path(app, "--data-dir", flags.dir,
           "images: folder of the files that `lockstep data` downloads; "
           "image-folder: the folder with train/CLASS/ and val/CLASS/",
           "DIR")
      ->group("Model and data");
  add_count(app, "--image-size", flags.image_size, {8, 1024},
            "image-folder: height and width that images are resized to")
      ->default_str("224; eval: that of the checkpoint")
      ->group("Model and data");
  add_path(app, "--data-file", flags.file,
           "text: a UTF-8 file, or a folder of tokens (`lockstep tokenize`, "
           "nanoGPT, llm.c)")
      ->group("Model and data");
  app.add_option("--tokenizer", flags.tokenizer,
                 "text: chars (a token for each character that occurs), bytes, "
                 "a tokenizer.json, or a folder with one")
      ->type_name("NAME|PATH")
      ->default_str("that of --init-from, or chars")
      ->group("Model and data");
  add_number(app, "--val-fraction", flags.validation_fraction,
             "text: fraction of the file, at its end, to evaluate on")
      ->default_str("0.1")
      ->check(number(0))
      ->group("Model and data");
}

data::DataSpec to_data_spec(const DataFlags& flags) {
  const std::string name = flags.data.empty() ? "synthetic" : flags.data;
  const char* for_text = !flags.file.empty()         ? "--data-file"
                         : flags.tokenizer           ? "--tokenizer"
                         : flags.validation_fraction ? "--val-fraction"
                                                     : nullptr;
  if (for_text != nullptr) {
    throw BadUsage(fmt::format("[usage] {} is for --data text; got --data {}",
                               for_text, name));
  }
  if (name == "text") {
    throw BadUsage(
        "[usage] --data text is for language models; use --model gpt-char, or "
        "--data synthetic");
  }
  if (name != "synthetic" && flags.dir.empty()) {
    throw BadUsage(
        fmt::format("[usage] --data {} needs --data-dir DIR, the folder with "
                    "{}; to train without files, use --data synthetic",
                    name, content_of_folder(name)));
  }
  if (name == "synthetic" && !flags.dir.empty()) {
    throw BadUsage(
        "[usage] --data-dir is for data in files, such as --data cifar10; got "
        "--data synthetic");
  }
  if (name != "image-folder" && flags.image_size) {
    throw BadUsage(
        "[usage] --image-size is for --data image-folder; got --data " + name);
  }
  data::DataSpec spec;
  spec.name = name;
  spec.dir = flags.dir;
  spec.image_size = flags.image_size.value_or(spec.image_size);
  return spec;
}

tasks::TextSpec to_text_spec(const DataFlags& flags) {
  if (!flags.data.empty() && flags.data != "text") {
    throw BadUsage("[usage] language models need --data text, got --data " +
                   flags.data);
  }
  if (!flags.dir.empty() || flags.image_size) {
    throw BadUsage(
        fmt::format("[usage] {} is for images; use --data-file for a text",
                    flags.dir.empty() ? "--image-size" : "--data-dir"));
  }
  if (flags.file.empty()) {
    throw BadUsage("[usage] --data text needs --data-file FILE, a UTF-8 text");
  }
  tasks::TextSpec spec;
  spec.file = flags.file;
  spec.tokenizer = flags.tokenizer.value_or("");
  spec.validation_fraction =
      flags.validation_fraction.value_or(spec.validation_fraction);
  return spec;
}

void add_channels_last_option(CLI::App& app, std::string& channels_last) {
  app.add_option("--channels-last", channels_last,
                 "channels-last layout of images: on, off, or auto (on for "
                 "convolutions on the CPU)")
      ->type_name("WHEN")
      ->check(one_of({"auto", "on", "off"}))
      ->group("Devices");
}

std::optional<bool> to_channels_last(const std::string& channels_last) {
  if (channels_last == "auto") return std::nullopt;
  return channels_last == "on";
}

bool use_channels_last(const std::string& channels_last,
                       const models::ModelSpec& model,
                       const std::vector<Device>& devices) {
  return to_channels_last(channels_last)
      .value_or(tasks::prefers_channels_last(model, devices));
}

}  // namespace lockstep::cli
