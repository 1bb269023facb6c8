#pragma once

#include <torch/csrc/jit/runtime/graph_executor.h>

namespace lockstep {

/// While it lives, this thread runs TorchScript as it is written. What the
/// executor makes of a graph otherwise depends on how often it ran before: on
/// how many shards a device has, and so would the bits.
class ScriptScope {
 private:
  const torch::jit::GraphOptimizerEnabledGuard as_written_{false};
};

}  // namespace lockstep
