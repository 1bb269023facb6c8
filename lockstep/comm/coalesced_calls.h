#pragma once

#include <cstddef>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/types.h>

namespace lockstep {

class CallFactory;
struct CollectiveCall;

/// The calls of a group that ProcessGroup::coalesce() submits as one, as
/// PyTorch's _coalescing_manager does. Each call is checked when it is added,
/// like ProcessGroup's function of the same name. Nothing is sent before all
/// calls are added.
///
/// The calls run in order, except for consecutive all-reduces: small tensors of
/// one type and reduction are sent in one message, and get the same bits as in
/// separate messages. So many small tensors cost about as much as one of them.
class CoalescedCalls {
 public:
  using Tensors = std::vector<torch::Tensor>;
  using ReduceOp = c10d::ReduceOp;

  ~CoalescedCalls();
  CoalescedCalls(const CoalescedCalls&) = delete;
  CoalescedCalls& operator=(const CoalescedCalls&) = delete;

  void all_reduce(const torch::Tensor& tensor,
                  const ReduceOp& op = ReduceOp::SUM);
  void reduce(const torch::Tensor& tensor, int root,
              const ReduceOp& op = ReduceOp::SUM);
  void broadcast(const torch::Tensor& tensor, int root);
  /// Returns the tensors that get the result when the group is done.
  Tensors all_gather(const torch::Tensor& tensor);
  void all_gather_into_tensor(const torch::Tensor& output,
                              const torch::Tensor& input);
  Tensors gather(const torch::Tensor& tensor, int root);
  void scatter(const torch::Tensor& tensor, const Tensors& parts, int root);
  void reduce_scatter(const torch::Tensor& tensor, const Tensors& parts,
                      const ReduceOp& op = ReduceOp::SUM);
  void reduce_scatter_tensor(const torch::Tensor& output,
                             const torch::Tensor& input,
                             const ReduceOp& op = ReduceOp::SUM);
  void all_to_all(const Tensors& outputs, const Tensors& inputs);
  void all_to_all_single(const torch::Tensor& output,
                         const torch::Tensor& input,
                         const std::vector<int64_t>& output_splits = {},
                         const std::vector<int64_t>& input_splits = {});
  void barrier();

  bool empty() const { return added_.empty(); }

 protected:
  friend class ProcessGroup;

  explicit CoalescedCalls(const CallFactory& calls);
  /// Returns one call that makes all the added calls. Joins all-reduces of
  /// tensors of up to `small_bytes`.
  CollectiveCall join(size_t small_bytes) &&;

 private:
  const CallFactory& calls_;
  std::vector<CollectiveCall> added_;
};

}  // namespace lockstep
