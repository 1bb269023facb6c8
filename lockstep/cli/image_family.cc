#include "lockstep/cli/image_family.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/models/model_settings.h"
#include "lockstep/tasks/images/evaluate_images.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/images/image_workload.h"
#include "lockstep/tasks/images/memory_format.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::cli {
namespace {

/// Values of --data and of the options for a dataset.
struct DataFlags {
  std::string data;
  std::string dir;
  std::optional<int64_t> image_size;
};

/// Returns the files of a dataset, for an error about a missing --data-dir.
std::string content_of_folder(const std::string& dataset) {
  if (dataset == "cifar10") return "data_batch_*.bin and test_batch.bin";
  if (dataset == "cifar100") return "train.bin and test.bin";
  if (dataset == "image-folder") return "train/CLASS/ and val/CLASS/";
  return "train-images-idx3-ubyte.gz and three more";
}

data::DataSpec to_data_spec(const DataFlags& flags) {
  const std::string name = flags.data.empty() ? "synthetic" : flags.data;
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

// Returns the data of the checkpoint, unless other data was given.
data::DataSpec choose_data(const DataFlags& flags, const CheckpointInfo& info) {
  const bool is_known = info.run && info.run->settings.contains("data");
  if (!flags.data.empty() && !is_known) return to_data_spec(flags);
  DataFlags named = flags;
  const auto spec = tasks::data_of(info);
  if (named.data.empty()) {
    named.data = spec.name;
    if (named.dir.empty()) named.dir = spec.dir;
  }
  if (named.data == "image-folder" && spec.name == named.data &&
      !named.image_size) {
    named.image_size = spec.image_size;
  }
  return to_data_spec(named);
}

class ImageFamily : public ModelFamily {
 public:
  std::string name() const override { return "images"; }
  std::vector<std::string> models() const override { return models::names(); }
  std::vector<std::string> datasets() const override {
    return data::dataset_names();
  }
  std::string models_help() const override {
    return "images: cnn (small, learns in seconds), mlp, resnet18, resnet34";
  }
  std::string datasets_help() const override {
    return "images: synthetic (built in), cifar10, cifar100, mnist, "
           "fashion-mnist, image-folder (JPEG and PNG)";
  }

  std::vector<Option> options(OptionKind kind) override {
    switch (kind) {
      case OptionKind::kModel:
        return {{.name = "--stem",
                 .value = &stem_,
                 .help = "resnets: cifar (3x3, for 32x32 images) or imagenet "
                         "(7x7 and max-pool)",
                 .group = kModelAndData,
                 .topic = kMoreAboutModel,
                 .words = {"cifar", "imagenet"}}};
      case OptionKind::kData:
        return {{.name = "--data-dir",
                 .value = &data_.dir,
                 .help = "images: folder of the files that `lockstep data` "
                         "downloads; image-folder: the folder with "
                         "train/CLASS/ and val/CLASS/",
                 .type = "DIR",
                 .default_text = "none",
                 .group = kModelAndData},
                {.name = "--image-size",
                 .value = &data_.image_size,
                 .help = "image-folder: height and width that images are "
                         "resized to",
                 .default_text = "224; eval: that of the checkpoint",
                 .group = kModelAndData,
                 .topic = kMoreAboutModel,
                 .range = between(8, 1024)}};
      case OptionKind::kAugmentation:
        return {{.name = "--no-augment",
                 .value = &no_augment_,
                 .help = "train without random crop and flip",
                 .group = kModelAndData,
                 .topic = kMoreAboutModel}};
      case OptionKind::kLayout:
        return {{.name = "--channels-last",
                 .value = &channels_last_,
                 .help = "channels-last layout of images: on, off, or auto (on "
                         "for convolutions on the CPU)",
                 .type = "WHEN",
                 .group = "Devices",
                 .topic = kMoreAboutModel,
                 .words = {"auto", "on", "off"}}};
    }
    return {};
  }

  int64_t eval_batch_size() const override {
    return tasks::EvalOptions().batch_size;
  }

  bool owns(const CheckpointInfo& info) const override {
    const auto name = info.model.find("name");
    return name != info.model.end() &&
           std::ranges::count(models::names(), name->second) > 0;
  }

  TrainingRun make_run(const TrainChoice& choice) const override {
    DataFlags data = data_;
    data.data = choice.data;
    const tasks::ImageOptions images{.model = model_spec(choice.model.value()),
                                     .data = to_data_spec(data),
                                     .augment = !no_augment_,
                                     .channels_last = channels_last(),
                                     .optimizer = choice.optimizer};
    return {.task = std::make_shared<tasks::ImageTask>(images),
            .model = images.model.name,
            .data = images.data.name == "synthetic" ? "built-in images"
                                                    : images.data.name};
  }

  EvalResult evaluate(const EvalChoice& choice) const override {
    DataFlags data = data_;
    data.data = choice.data;
    tasks::EvalOptions options;
    options.checkpoint = choice.checkpoint;
    options.data = choose_data(data, choice.info);
    options.devices = choice.devices;
    options.batch_size = choice.batch_size.value_or(options.batch_size);
    options.loader_workers = choice.loader_workers;
    options.precision = choice.precision;
    options.channels_last =
        channels_last().value_or(tasks::prefers_channels_last(
            models::spec_from_settings(choice.info.model), options.devices));
    options.on_batch = choice.on_batch;
    const tasks::EvalReport report = tasks::evaluate_checkpoint(options);
    const double loss = report.test.metrics.at("loss");
    const double accuracy = report.test.metrics.at("accuracy");
    return {.checkpoint = report.checkpoint,
            .info = report.info,
            .data = fmt::format(
                "the test split of {}{}", options.data.name,
                options.data.dir.empty() ? "" : " in " + options.data.dir),
            .figures = {{"loss", loss},
                        {"accuracy", accuracy},
                        {"samples", report.test.samples}},
            .lines = {"Test Loss: " + format_number(loss),
                      fmt::format("Test Acc: {:.4f}%", 100 * accuracy),
                      fmt::format("Samples: {}", report.test.samples)},
            .seconds = report.seconds};
  }

  std::shared_ptr<const tasks::Workload> make_workload(
      const std::string& model,
      const tasks::OptimizerOptions& optimizer) const override {
    return std::make_shared<tasks::ImageWorkload>(
        tasks::ImageOptions{.model = model_spec(model),
                            .data = {},
                            .channels_last = channels_last(),
                            .optimizer = optimizer});
  }

  bool uses_channels_last(const std::string& model,
                          const std::vector<Device>& devices) const override {
    return channels_last().value_or(
        tasks::prefers_channels_last(model_spec(model), devices));
  }

 private:
  models::ModelSpec model_spec(const std::string& model) const {
    models::ModelSpec spec;
    spec.name = model;
    spec.stem =
        stem_ == "imagenet" ? models::Stem::kImageNet : models::Stem::kCifar;
    return spec;
  }

  // Returns nullopt for the faster layout.
  std::optional<bool> channels_last() const {
    if (channels_last_ == "auto") return std::nullopt;
    return channels_last_ == "on";
  }

  std::string stem_ = "cifar";
  std::string channels_last_ = "auto";
  DataFlags data_;
  bool no_augment_ = false;
};

}  // namespace

std::shared_ptr<ModelFamily> make_image_family() {
  return std::make_shared<ImageFamily>();
}

}  // namespace lockstep::cli
