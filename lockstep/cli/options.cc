#include "lockstep/cli/options.h"

#include "lockstep/cli/start/checks.h"
#include "lockstep/tasks/images/memory_format.h"

namespace lockstep::cli {

void add_model_options(CLI::App& app, ModelFlags& flags) {
  app.add_option("--model", flags.model,
                 "cnn (small, learns in seconds), mlp, resnet18 or resnet34")
      ->type_name("NAME")
      ->check(one_of(models::names()))
      ->group("Model and data");
  app.add_option("--stem", flags.stem,
                 "resnets: cifar (3x3, for 32x32 images) or imagenet (7x7 "
                 "and max-pool)")
      ->type_name("NAME")
      ->check(one_of({"cifar", "imagenet"}))
      ->group("Model and data");
}

models::ModelSpec to_model_spec(const ModelFlags& flags) {
  models::ModelSpec spec;
  spec.name = flags.model;
  spec.stem =
      flags.stem == "imagenet" ? models::Stem::kImageNet : models::Stem::kCifar;
  return spec;
}

void add_data_options(CLI::App& app, DataFlags& flags,
                      const std::string& default_text) {
  app.add_option("--data", flags.data,
                 "synthetic (built in) or cifar10 (binary form)")
      ->type_name("NAME")
      ->default_str(default_text)
      ->check(one_of({"synthetic", "cifar10"}))
      ->group("Model and data");
  app.add_option("--data-dir", flags.dir,
                 "cifar10: folder of data_batch_*.bin and test_batch.bin")
      ->type_name("DIR")
      ->default_str("none")
      ->group("Model and data");
}

data::DataSpec to_data_spec(const DataFlags& flags) {
  if (flags.data == "cifar10" && flags.dir.empty()) {
    throw BadUsage(
        "[usage] --data cifar10 needs --data-dir DIR, the folder of "
        "data_batch_*.bin and test_batch.bin; without it, use the built-in "
        "--data synthetic");
  }
  if (flags.data != "cifar10" && !flags.dir.empty()) {
    throw BadUsage("[usage] --data-dir is for --data cifar10; got --data " +
                   flags.data);
  }
  data::DataSpec spec;
  spec.name = flags.data;
  spec.dir = flags.dir;
  return spec;
}

void add_memory_format_option(CLI::App& app, MemoryFormatFlags& flags) {
  app.add_option("--channels-last", flags.channels_last,
                 "layout of images: on, off, or auto (on for convolutions on "
                 "the CPU)")
      ->type_name("WHEN")
      ->check(one_of({"auto", "on", "off"}))
      ->group("Devices");
}

std::optional<bool> to_channels_last(const MemoryFormatFlags& flags) {
  if (flags.channels_last == "auto") return std::nullopt;
  return flags.channels_last == "on";
}

bool use_channels_last(const MemoryFormatFlags& flags,
                       const models::ModelSpec& model,
                       const std::vector<Device>& devices) {
  return to_channels_last(flags).value_or(
      tasks::prefers_channels_last(model, devices));
}

}  // namespace lockstep::cli
