#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/data/dataset.h"
#include "lockstep/device/device.h"
#include "lockstep/models/language/language_model.h"
#include "lockstep/models/model.h"
#include "lockstep/tasks/text/text_data.h"

// Options that several subcommands have. An add_...() function binds them to a
// struct that must outlive the app. A to_...() function converts the given
// values to the library's types, and throws BadUsage.
namespace lockstep::cli {

struct ModelFlags {
  std::string model = "cnn";
  std::string stem = "cifar";
};
/// `names` are the models to choose from.
void add_model_options(CLI::App& app, ModelFlags& flags,
                       const std::vector<std::string>& names);
/// Adds an option for fp32 or bf16, the precision that is measured.
void add_precision_option(CLI::App& app, std::string& precision);
models::ModelSpec to_model_spec(const ModelFlags& flags);

struct LanguageModelFlags {
  std::optional<int64_t> context;
  std::optional<double> dropout;
  bool recompute = false;
};
/// Adds --model with all models, and the options for language models.
void add_any_model_options(CLI::App& app, ModelFlags& flags,
                           LanguageModelFlags& language);
bool is_language_model(const ModelFlags& flags);
/// Throws BadUsage for options that do not apply to `spec`.
void check_language_options(const LanguageModelFlags& language,
                            const models::LanguageModelSpec& spec);

/// Adds --checkpoint, which must be given.
void add_checkpoint_option(CLI::App& app, std::string& checkpoint);

struct DataFlags {
  std::string data;  ///< empty: chosen by the model
  std::string dir;
  std::optional<int64_t> image_size;
  std::string file;
  std::optional<std::string> tokenizer;
  std::optional<double> validation_fraction;
};
/// Adds the options. `default_text` explains in the help what a missing --data
/// means.
void add_data_options(
    CLI::App& app, DataFlags& flags,
    const std::string& default_text = "synthetic; language models: text");
/// Returns the dataset of an image model.
data::DataSpec to_data_spec(const DataFlags& flags);
tasks::TextSpec to_text_spec(const DataFlags& flags);

/// Adds --channels-last: on, off or auto.
void add_channels_last_option(CLI::App& app, std::string& channels_last);
/// Returns nullopt for `auto`.
std::optional<bool> to_channels_last(const std::string& channels_last);
/// `auto` chooses channels_last where it helps.
bool use_channels_last(const std::string& channels_last,
                       const models::ModelSpec& model,
                       const std::vector<Device>& devices);

}  // namespace lockstep::cli
