#pragma once

#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/queue/call_checks.h"
#include "lockstep/comm/queue/communicator.h"

namespace lockstep {

/// Makes the calls of one rank from what its caller passes, which is checked
/// here, at the call: each function throws InvalidArgument for what can't be.
class CallFactory {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `device_type`: where tensors must be; none in a world of one, which takes
  /// any.
  CallFactory(int rank, int size, std::optional<c10::DeviceType> device_type)
      : rank_(rank), size_(size), device_type_(device_type) {}

  CallChecks checks(const char* operation) const {
    return {operation, rank_, size_, device_type_};
  }
  std::optional<c10::DeviceType> device_type() const { return device_type_; }

  /// Of a dense tensor, or on the host of a sparse one (COO): sum and average.
  CollectiveCall all_reduce(const at::Tensor& tensor,
                            const c10d::ReduceOp& op) const;
  CollectiveCall reduce(const at::Tensor& tensor, int64_t root,
                        const c10d::ReduceOp& op) const;
  CollectiveCall broadcast(const at::Tensor& tensor, int64_t root) const;
  CollectiveCall all_gather(const Tensors& outputs,
                            const at::Tensor& input) const;
  /// Into new tensors, which the call's outputs are.
  CollectiveCall all_gather(const at::Tensor& input) const;
  /// `outputs`: empty but on root.
  CollectiveCall gather(const Tensors& outputs, const at::Tensor& input,
                        int64_t root) const;
  CollectiveCall gather(const at::Tensor& input, int64_t root) const;
  /// `parts` counts on root alone.
  CollectiveCall scatter(const at::Tensor& output, const Tensors& parts,
                         int64_t root) const;
  CollectiveCall reduce_scatter(const at::Tensor& output, const Tensors& parts,
                                const c10d::ReduceOp& op) const;
  CollectiveCall all_to_all(const Tensors& outputs,
                            const Tensors& inputs) const;
  CollectiveCall barrier() const;

  void check_send(const at::Tensor& tensor, int to, int tag) const;
  void check_recv(const at::Tensor& tensor, int from, int tag) const;
  void check_recv_any(const at::Tensor& tensor, int tag) const;

 private:
  /// One tensor like `input` for each rank.
  Tensors new_outputs(const at::Tensor& input) const;

  int rank_;
  int size_;
  std::optional<c10::DeviceType> device_type_;
};

}  // namespace lockstep
