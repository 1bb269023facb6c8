#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/cli/embed/device_options.h"
#include "lockstep/data/dataset.h"
#include "lockstep/device/device.h"
#include "lockstep/models/model.h"

// Options that several subcommands take. An add_...() binds them to a struct
// that must outlive the app; a to_...() turns what was given into the
// library's types, and throws BadUsage.
namespace lockstep::cli {

struct ModelFlags {
  std::string model = "cnn";
  std::string stem = "cifar";
};
void add_model_options(CLI::App& app, ModelFlags& flags);
models::ModelSpec to_model_spec(const ModelFlags& flags);

struct DataFlags {
  std::string data = "synthetic";
  std::string dir;
};
/// `default_text` says in the help what no --data stands for.
void add_data_options(CLI::App& app, DataFlags& flags,
                      const std::string& default_text = "synthetic");
data::DataSpec to_data_spec(const DataFlags& flags);

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
