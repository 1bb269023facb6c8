#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/data/dataset.h"
#include "lockstep/device/device.h"
#include "lockstep/models/language/language_model_spec.h"
#include "lockstep/models/model.h"
#include "lockstep/tasks/text/text_data.h"

// Options that several subcommands take. An add_...() binds them to a struct
// that must outlive the app; a to_...() turns what was given into the
// library's types, and throws BadUsage.
namespace lockstep::cli {

struct ModelFlags {
  std::string model = "cnn";
  std::string stem = "cifar";
};
/// `names`: those to choose from.
void add_model_options(CLI::App& app, ModelFlags& flags,
                       const std::vector<std::string>& names);
/// fp32 or bf16, of what is measured.
void add_precision_option(CLI::App& app, std::string& precision);
models::ModelSpec to_model_spec(const ModelFlags& flags);

struct LanguageModelFlags {
  std::optional<int64_t> context;
  std::optional<double> dropout;
  bool recompute = false;
};
/// --model with all models, and what there is to choose of a language model.
void add_any_model_options(CLI::App& app, ModelFlags& flags,
                           LanguageModelFlags& language);
bool is_language_model(const ModelFlags& flags);
models::LanguageModelSpec to_language_model_spec(
    const ModelFlags& flags, const LanguageModelFlags& language);
/// Throws BadUsage for options that `spec` can't have.
void check_language_options(const LanguageModelFlags& language,
                            const models::LanguageModelSpec& spec);

struct DataFlags {
  std::string data;  ///< empty: what suits the model
  std::string dir;
  std::optional<int64_t> image_size;
  std::string file;
  std::optional<std::string> tokenizer;
  std::optional<double> validation_fraction;
};
/// `default_text` says in the help what no --data stands for.
void add_data_options(
    CLI::App& app, DataFlags& flags,
    const std::string& default_text = "synthetic; language models: text");
/// Of images.
data::DataSpec to_data_spec(const DataFlags& flags);
tasks::TextSpec to_text_spec(const DataFlags& flags);

struct MemoryFormatFlags {
  std::string channels_last = "auto";
};
void add_memory_format_option(CLI::App& app, MemoryFormatFlags& flags);
/// Nothing for `auto`.
std::optional<bool> to_channels_last(const MemoryFormatFlags& flags);
/// `auto` is where it helps.
bool use_channels_last(const MemoryFormatFlags& flags,
                       const models::ModelSpec& model,
                       const std::vector<Device>& devices);

}  // namespace lockstep::cli
