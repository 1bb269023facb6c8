#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/checkpoint/info.h"
#include "lockstep/checkpoint/saved_state.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// A folder DIR/step-00000030 holding model.safetensors, the optimizer's state
/// in one safetensors file or one of each rank, and manifest.json (written
/// last, with the size and XXH128 of the others and of itself). It is built
/// under another name, synced and renamed, so a folder with that name is always
/// whole. Keeps the newest `keep` of them, 2 at least. Returns the folder.
///
/// Throws CheckpointError when a parameter is not finite: what was saved before
/// is worth more.
std::string save_checkpoint(const std::string& dir,
                            const torch::nn::Module& model,
                            const optim::Optimizer& optimizer,
                            const CheckpointInfo& info, int keep = 3);

/// Whether a checkpoint was saved in `dir`, whole or damaged since. A run that
/// was killed before or in its first save_checkpoint() has none, though it may
/// have the folder: it starts at the beginning.
bool has_checkpoint(const std::string& dir);

/// The newest whole checkpoint in `dir`, or `dir` itself if it is one; those
/// that are damaged are skipped with a warning. Throws CheckpointError if
/// `dir` holds no whole checkpoint.
std::string find_checkpoint(const std::string& dir);

struct Manifest;

/// A checkpoint whose files are as they were written: opening it checks their
/// sizes and checksums, once. Throws CheckpointError.
class CheckpointReader : public SavedState {
 public:
  explicit CheckpointReader(std::string path);

  const std::string& path() const { return path_; }
  const CheckpointInfo& info() const;
  /// What `build` returns, which makes the model of info(). Throws
  /// CheckpointError as soon as that has more parameters than the checkpoint
  /// has, before they take memory: a manifest may be forged.
  template <class Build>
  auto make(const Build& build) const {
    decltype(build()) model;
    within_budget([&] { model = build(); });
    return model;
  }
  using SavedState::load;
  /// Throws CheckpointError also for a tensor with a NaN that was not saved as
  /// one, and if the parameters are not those of the manifest's digest.
  void load(const NamedTensors& module) const override;
  OptimizerState optimizer_state(const OptimizerState& like) const override;
  /// Both, or neither.
  void load(const torch::nn::Module& model, optim::Optimizer* optimizer) const;
  OptimizerState random_state() const override;

 private:
  bool has(const std::string& file) const;
  void within_budget(const std::function<void()>& build) const;
  /// The model's tensors, which fit `module`.
  NamedTensors read_model(const NamedTensors& module) const;
  /// The path of the model's file.
  std::string model_file() const;

  std::string path_;
  std::shared_ptr<const Manifest> manifest_;
};

/// What find_checkpoint() finds.
CheckpointReader open_checkpoint(const std::string& dir);

CheckpointInfo read_checkpoint_info(const std::string& checkpoint);

/// Loads the model (and the optimizer's state, if given) of one checkpoint.
void load_checkpoint(const std::string& checkpoint,
                     const torch::nn::Module& model,
                     optim::Optimizer* optimizer = nullptr);

}  // namespace lockstep
