#pragma once

#include <cstddef>
#include <iterator>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

class SharedMemory;

// The collectives, each with the arguments of its caller. Lists of tensors have
// one tensor for each rank unless noted otherwise.

struct AllReduce {
  at::Tensor tensor;
  c10d::ReduceOp op;
};
struct SparseAllReduce {
  at::Tensor tensor;
  c10d::ReduceOp op;
};
struct Reduce {
  at::Tensor tensor;
  int root;
  c10d::ReduceOp op;
};
struct Broadcast {
  at::Tensor tensor;
  int root;
};
struct AllGather {
  std::vector<at::Tensor> outputs;
  at::Tensor input;
};
/// In `output`, the inputs of the ranks follow each other.
struct AllGatherIntoTensor {
  at::Tensor output;
  at::Tensor input;
};
struct Gather {
  std::vector<at::Tensor> outputs;  ///< empty on all ranks except root
  at::Tensor input;
  int root;
};
struct Scatter {
  at::Tensor output;
  std::vector<at::Tensor> inputs;  ///< empty on all ranks except root
  int root;
};
struct ReduceScatter {
  at::Tensor output;
  std::vector<at::Tensor> inputs;
  c10d::ReduceOp op;
};
/// In `input`, the data for the ranks follows each other.
struct ReduceScatterTensor {
  at::Tensor output;
  at::Tensor input;
  c10d::ReduceOp op;
};
/// Sizes may differ between pairs of ranks.
struct AllToAll {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
};
struct Barrier {};
/// Allocates `bytes` of zeros for each rank, which all ranks map.
struct ShareMemory {
  size_t bytes;
  SharedMemory* result;
};

using Collective =
    std::variant<AllReduce, SparseAllReduce, Reduce, Broadcast, AllGather,
                 AllGatherIntoTensor, Gather, Scatter, ReduceScatter,
                 ReduceScatterTensor, AllToAll, Barrier, ShareMemory>;

/// A call of a rank, with arguments that were already checked (CallFactory).
/// It keeps its tensors alive.
struct CollectiveCall {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs{};  ///< tensors that it writes to
  /// Collectives that are performed in this order. Usually there is one.
  std::vector<Collective> collectives{};

  /// Adds the outputs and the collectives of `call`.
  void append(CollectiveCall call) {
    outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
    collectives.insert(collectives.end(),
                       std::make_move_iterator(call.collectives.begin()),
                       std::make_move_iterator(call.collectives.end()));
  }
};

}  // namespace lockstep
