#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "lockstep/base/json.h"
#include "lockstep/base/option.h"
#include "lockstep/checkpoint/info.h"
#include "lockstep/device/device.h"
#include "lockstep/tasks/optimizer_options.h"
#include "lockstep/tasks/workload.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"

namespace lockstep::cli {

/// Group of the options for models and data in the help, and the topic of those
/// that `train` leaves to --help-all.
inline constexpr const char* kModelAndData = "Model and data";
inline constexpr const char* kMoreAboutModel = "More about model and data";

/// Subject of an option of a family. A command has the kinds that it needs.
enum class OptionKind { kModel, kData, kAugmentation, kLayout };

/// Values of the optimizer's options that are not given.
struct OptimizerDefaults {
  tasks::OptimizerKind optimizer = tasks::OptimizerKind::kSgd;
  double adamw_decay = 1e-2;
  double beta2 = 0.999;
  /// adamw: no weight decay for biases and the weights of norms.
  bool decays_matrices_alone = false;
  /// Learning rate at the end of a cosine, as a fraction of --lr.
  double final_lr_fraction = 0;
};

/// A training run: its task, and the names of its parts.
struct TrainingRun {
  std::shared_ptr<training::Task> task;
  std::string model;  ///< their names, for the first line of the log
  std::string data;
};

/// The choices for a training run that all families have.
struct TrainChoice {
  std::optional<std::string> model;  ///< nullopt: not named
  std::string data;                  ///< --data; empty: chosen by the family
  tasks::OptimizerOptions optimizer;
};

struct EvalChoice {
  std::string checkpoint;
  CheckpointInfo info;  ///< of the checkpoint
  std::string data;     ///< --data; empty: that of the checkpoint
  std::vector<Device> devices;
  std::optional<int64_t> batch_size;
  int loader_workers = 1;
  training::Precision precision = training::Precision::kFloat32;
  /// Called before each batch with the number of batches done and of all.
  std::function<void(int64_t done, int64_t total)> on_batch{};
};

struct EvalResult {
  std::string checkpoint;  ///< the folder that was loaded
  CheckpointInfo info;
  std::string data;  ///< what it was evaluated on, such as "the test split"
  nlohmann::ordered_json figures;  ///< for --json
  std::vector<std::string> lines;  ///< the figures as text
  double seconds = 0;
};

/// Models of one kind with the data and the options that only they have. Images
/// are a family of the main program, and lm/ adds language models. The commands
/// that train, evaluate and measure leave to a family what differs.
///
/// An object holds the values of its options, so each command has its own.
class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  /// Returns the name for messages: "images", "language models".
  virtual std::string name() const = 0;
  virtual std::vector<std::string> models() const = 0;
  /// Returns the names for --data.
  virtual std::vector<std::string> datasets() const = 0;
  /// Describe the models and the data in the help.
  virtual std::string models_help() const = 0;
  virtual std::string datasets_help() const = 0;

  /// Returns the family's own options of a kind, which point into this object.
  /// `train --help` leaves those with a topic to --help-all.
  virtual std::vector<Option> options(OptionKind kind) = 0;

  virtual OptimizerDefaults optimizer_defaults() const { return {}; }
  virtual int64_t eval_batch_size() const = 0;

  /// Returns whether this family made a checkpoint.
  virtual bool owns(const CheckpointInfo& info) const = 0;
  /// Returns whether `folder` has a model of this family in a format other than
  /// a checkpoint.
  virtual bool has_model(const std::string& /*folder*/) const { return false; }
  /// Remembers the model at `path` (a checkpoint, the folder of a run or
  /// has_model()) as the one to begin with, if it is of this family and says
  /// what its model is. Returns the path of what says that.
  virtual std::optional<std::string> begin_with(const std::string& /*path*/) {
    return std::nullopt;
  }

  /// These throw BadUsage for options that contradict each other.
  virtual TrainingRun make_run(const TrainChoice& choice) const = 0;
  virtual EvalResult evaluate(const EvalChoice& choice) const = 0;
  /// Returns the model that begin_with() found, or else `model`.
  virtual std::shared_ptr<const tasks::Workload> make_workload(
      const std::string& model,
      const tasks::OptimizerOptions& optimizer) const = 0;
  /// Returns whether `model` gets images in the channels-last layout.
  virtual bool uses_channels_last(
      const std::string& /*model*/,
      const std::vector<Device>& /*devices*/) const {
    return false;
  }
};

using MakeFamily = std::function<std::shared_ptr<ModelFamily>()>;

/// The families of a command.
class ModelFamilies {
 public:
  explicit ModelFamilies(const std::vector<MakeFamily>& families);

  /// Returns --model with the models of all families.
  Option model_option(std::string& model) const;
  /// Returns --data with the datasets of all families. `default_text` explains
  /// in the help what a missing --data means.
  Option data_option(std::string& data, const std::string& default_text) const;
  /// Returns the families' own options of a kind, all of which --help shows.
  std::vector<Option> options(OptionKind kind) const;
  /// Returns them for `train`, which leaves some to --help-all.
  std::vector<Option> options_by_topic(OptionKind kind) const;

  std::vector<std::string> models() const;
  /// Returns the family of a model of models().
  ModelFamily& of_model(const std::string& model) const;

  /// Throws BadUsage if `app` was given an option or `data` of another family
  /// than `chosen`. `got` says what was chosen: "--model mlp".
  void refuse_others(const CLI::App& app, const ModelFamily& chosen,
                     const std::string& data, const std::string& got) const;

  /// Returns the default of an option: `text`, followed by what other families
  /// have instead.
  std::string default_text(
      const std::string& text,
      const std::function<std::string(const ModelFamily&)>& of_family) const;

  /// Returns the default of --optimizer.
  std::string default_optimizer() const;

  auto begin() const { return families_.begin(); }
  auto end() const { return families_.end(); }

 private:
  std::vector<std::shared_ptr<ModelFamily>> families_;
};

}  // namespace lockstep::cli
