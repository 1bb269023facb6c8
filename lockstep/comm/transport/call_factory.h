#pragma once

#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/transport/call_checks.h"
#include "lockstep/comm/transport/collective.h"

namespace lockstep {

/// Makes the calls of one rank from the arguments of its caller. The arguments
/// are checked here, before anything is queued: each function throws
/// InvalidArgument for invalid arguments.
class CallFactory {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `device_type` is the required device type of tensors. In a group of one it
  /// has no value, because tensors may be on any device there.
  CallFactory(int rank, int size, std::optional<c10::DeviceType> device_type)
      : rank_(rank), size_(size), device_type_(device_type) {}

  CallChecks checks(const char* operation) const {
    return {operation, rank_, size_, device_type_};
  }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// `tensor` is dense or, on the host, sparse (COO). A sparse tensor can be
  /// summed and averaged.
  CollectiveCall all_reduce(const at::Tensor& tensor,
                            const c10d::ReduceOp& op) const;
  CollectiveCall reduce(const at::Tensor& tensor, int64_t root,
                        const c10d::ReduceOp& op) const;
  CollectiveCall broadcast(const at::Tensor& tensor, int64_t root) const;
  CollectiveCall all_gather(const Tensors& outputs,
                            const at::Tensor& input) const;
  /// Same, but the result goes into new tensors, which are the call's outputs.
  CollectiveCall all_gather(const at::Tensor& input) const;
  /// `output` has the size of the inputs of all ranks. Its shape does not
  /// matter.
  CollectiveCall all_gather_into_tensor(const at::Tensor& output,
                                        const at::Tensor& input) const;
  /// `outputs` is empty on all ranks except root.
  CollectiveCall gather(const Tensors& outputs, const at::Tensor& input,
                        int64_t root) const;
  CollectiveCall gather(const at::Tensor& input, int64_t root) const;
  /// `parts` is used on root only.
  CollectiveCall scatter(const at::Tensor& output, const Tensors& parts,
                         int64_t root) const;
  CollectiveCall reduce_scatter(const at::Tensor& output, const Tensors& parts,
                                const c10d::ReduceOp& op) const;
  CollectiveCall reduce_scatter_tensor(const at::Tensor& output,
                                       const at::Tensor& input,
                                       const c10d::ReduceOp& op) const;
  CollectiveCall all_to_all(const Tensors& outputs,
                            const Tensors& inputs) const;
  /// Cuts both tensors along their first dimension, evenly if there are no
  /// splits.
  CollectiveCall all_to_all_single(
      const at::Tensor& output, const at::Tensor& input,
      const std::vector<int64_t>& output_splits,
      const std::vector<int64_t>& input_splits) const;
  CollectiveCall barrier() const;

  void check_send(const at::Tensor& tensor, int to, int tag) const;
  void check_recv(const at::Tensor& tensor, int from, int tag) const;
  void check_recv_any(const at::Tensor& tensor, int tag) const;

 private:
  /// Returns one tensor like `input` for each rank.
  Tensors new_outputs(const at::Tensor& input) const;

  int rank_;
  int size_;
  std::optional<c10::DeviceType> device_type_;
};

}  // namespace lockstep
