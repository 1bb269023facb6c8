#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/comm/collectives/collectives.h"

namespace lockstep {

/// A collective that a rank called, with arguments that were checked: what is
/// done when its turn comes. Keeps the tensors.
struct CollectiveCall {
  using Task = std::function<void(Collectives&, std::chrono::milliseconds)>;

  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs{};  ///< the tensors that it writes to
  Task perform;                       ///< gets the timeout
  /// Set if this is an all-reduce of the dense tensor outputs[0] whose message
  /// can be joined with others.
  std::optional<c10d::ReduceOp> reduction = std::nullopt;
};

}  // namespace lockstep
