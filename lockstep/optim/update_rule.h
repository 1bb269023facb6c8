#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace lockstep::optim {

/// The operators that update a block.
enum class Kernels {
  kFused,      ///< ATen's fused kernels
  kLikeTorch,  ///< those that round as the optimizer's own step() does, in
               ///< float and double
};

/// A block to update. All tensors are 1-d, of its length and on one device.
struct BlockUpdate {
  const torch::Tensor& parameter;
  const torch::Tensor& gradient;
  /// In the order of state_names(). Null where the optimizer has fewer.
  std::array<const torch::Tensor*, 3> state{};
  size_t group = 0;  ///< of the parameter
  int64_t step = 0;  ///< of the parameter, counted from 1. Not for SGD
  torch::Tensor step_count{};  ///< `step`, as Adam's kernels take it
  bool is_first = false;       ///< SGD: first step with momentum
};

/// The formula of an SGD, Adam or AdamW of torch::optim, with the options of
/// its groups.
class UpdateRule {
 public:
  UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;
  virtual ~UpdateRule() = default;

  /// Reads the options of the groups. Must be called before the other
  /// functions.
  virtual void read(const torch::optim::Optimizer& optimizer) = 0;
  /// Updates the parameter and the state. May be called from any thread.
  virtual void update(const BlockUpdate& block) const = 0;
  /// Returns whether a step of a parameter in `group` makes or changes state.
  virtual bool uses_state(size_t group) const = 0;
  /// Returns the options of `group` as text.
  virtual std::string options_text(size_t group) const = 0;
};

/// Returns the rule of `optimizer`. Returns null for another type, and for a
/// class that derives from one of the three, because its step() may differ.
std::unique_ptr<UpdateRule> make_update_rule(
    const torch::optim::Optimizer& optimizer, Kernels kernels);

}  // namespace lockstep::optim
