#pragma once

#include <torch/csrc/jit/runtime/graph_executor.h>

namespace lockstep {

/// Makes this thread run TorchScript unoptimized during its lifetime. The
/// executor otherwise optimizes a graph depending on how often it ran before.
/// That number depends on how many shards a device has, so the bits of the
/// result would too.
class ScriptScope {
 private:
  const torch::jit::GraphOptimizerEnabledGuard as_written_{false};
};

}  // namespace lockstep
