#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "lockstep/checkpoint/info.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {

/// Saves a checkpoint in a folder DIR/step-00000030 and returns the folder. It
/// has model.safetensors, the optimizer's state in one safetensors file or one
/// for each rank, and manifest.json (written last, with the size and XXH128 of
/// the other files and of itself). The folder is built under another name,
/// synced and renamed, so a folder with the final name is always complete.
/// Keeps the newest `keep` folders, at least 2.
///
/// `optimizer` is an SGD, Adam, AdamW, RMSprop or Adagrad of torch::optim.
/// Throws InvalidArgument for another type, and CheckpointError if a parameter
/// is not finite, since the earlier checkpoints are worth more.
std::string save_checkpoint(const std::string& dir,
                            const torch::nn::Module& model,
                            const torch::optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep = 3);

/// Returns true if a checkpoint was saved in `dir`, even if it has been damaged
/// since. A run that was killed before or in its first save_checkpoint() has
/// none, though it may have the folder. It starts from the beginning.
bool has_checkpoint(const std::string& dir);

/// Returns the newest complete checkpoint in `dir`, or `dir` itself if it is
/// one. Damaged ones are skipped with a warning. Throws CheckpointError if
/// `dir` has no complete checkpoint.
std::string find_checkpoint(const std::string& dir);

/// Interface to the saved state of a run, on disk or in memory.
class SavedState {
 public:
  virtual ~SavedState() = default;

  /// Copies parameters and buffers into `module`, a state dict. If something
  /// does not fit, throws CheckpointError naming it, and nothing is changed.
  virtual void load(const NamedTensors& module) const = 0;
  /// Returns the optimizer's state. Throws CheckpointError.
  virtual OptimizerState optimizer_state() const = 0;
  /// Returns the states of random number generators, by name.
  virtual OptimizerState random_state() const = 0;

  void load(const torch::nn::Module& module) const { load(state_dict(module)); }
  /// Loads the state of `optimizer`, which is of one of the types that
  /// save_checkpoint() takes.
  void load(torch::optim::Optimizer& optimizer) const;
};

struct Manifest;

/// Reads a checkpoint. Opening it checks the sizes and checksums of its files,
/// once. Throws CheckpointError.
class CheckpointReader : public SavedState {
 public:
  explicit CheckpointReader(std::string path);

  const std::string& path() const { return path_; }
  const CheckpointInfo& info() const;
  /// Returns the result of `build`, which makes the model of info(). Throws
  /// CheckpointError as soon as the model has more parameters than the
  /// checkpoint, before they take memory, because a manifest may be forged.
  template <class Build>
  auto make(const Build& build) const {
    decltype(build()) model;
    within_budget([&] { model = build(); });
    return model;
  }
  using SavedState::load;
  /// Also throws CheckpointError for a tensor with a NaN that was not saved as
  /// one, and if the parameters don't have the manifest's digest.
  void load(const NamedTensors& module) const override;
  OptimizerState optimizer_state() const override;
  /// Loads both, or neither.
  void load(const torch::nn::Module& model,
            torch::optim::Optimizer* optimizer) const;
  OptimizerState random_state() const override;

 private:
  void within_budget(const std::function<void()>& build) const;
  /// Returns the model's tensors, which fit `module`.
  NamedTensors read_model(const NamedTensors& module) const;
  /// Returns the path of the model's file.
  std::string model_file() const;

  std::string path_;
  std::shared_ptr<const Manifest> manifest_;
};

/// Opens the checkpoint that find_checkpoint() returns.
CheckpointReader open_checkpoint(const std::string& dir);

CheckpointInfo read_checkpoint_info(const std::string& checkpoint);

/// Loads the model (and the optimizer's state, if given) of one checkpoint.
void load_checkpoint(const std::string& checkpoint,
                     const torch::nn::Module& model,
                     torch::optim::Optimizer* optimizer = nullptr);

}  // namespace lockstep
