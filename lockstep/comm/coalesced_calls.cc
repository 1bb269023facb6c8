#include "lockstep/comm/coalesced_calls.h"

#include <utility>

#include "lockstep/comm/transport/call_factory.h"
#include "lockstep/comm/transport/joined_messages.h"

namespace lockstep {

CoalescedCalls::CoalescedCalls(const CallFactory& calls) : calls_(calls) {}
CoalescedCalls::~CoalescedCalls() = default;

void CoalescedCalls::all_reduce(const torch::Tensor& tensor,
                                const ReduceOp& op) {
  added_.push_back(calls_.all_reduce(tensor, op));
}

void CoalescedCalls::reduce(const torch::Tensor& tensor, int root,
                            const ReduceOp& op) {
  added_.push_back(calls_.reduce(tensor, root, op));
}

void CoalescedCalls::broadcast(const torch::Tensor& tensor, int root) {
  added_.push_back(calls_.broadcast(tensor, root));
}

CoalescedCalls::Tensors CoalescedCalls::all_gather(
    const torch::Tensor& tensor) {
  added_.push_back(calls_.all_gather(tensor));
  return added_.back().outputs;
}

CoalescedCalls::Tensors CoalescedCalls::gather(const torch::Tensor& tensor,
                                               int root) {
  added_.push_back(calls_.gather(tensor, root));
  return added_.back().outputs;
}

void CoalescedCalls::scatter(const torch::Tensor& tensor, const Tensors& parts,
                             int root) {
  added_.push_back(calls_.scatter(tensor, parts, root));
}

void CoalescedCalls::reduce_scatter(const torch::Tensor& tensor,
                                    const Tensors& parts, const ReduceOp& op) {
  added_.push_back(calls_.reduce_scatter(tensor, parts, op));
}

void CoalescedCalls::all_to_all(const Tensors& outputs, const Tensors& inputs) {
  added_.push_back(calls_.all_to_all(outputs, inputs));
}

void CoalescedCalls::all_gather_into_tensor(const torch::Tensor& output,
                                            const torch::Tensor& input) {
  added_.push_back(calls_.all_gather_into_tensor(output, input));
}

void CoalescedCalls::reduce_scatter_tensor(const torch::Tensor& output,
                                           const torch::Tensor& input,
                                           const ReduceOp& op) {
  added_.push_back(calls_.reduce_scatter_tensor(output, input, op));
}

void CoalescedCalls::all_to_all_single(
    const torch::Tensor& output, const torch::Tensor& input,
    const std::vector<int64_t>& output_splits,
    const std::vector<int64_t>& input_splits) {
  added_.push_back(
      calls_.all_to_all_single(output, input, output_splits, input_splits));
}

void CoalescedCalls::barrier() { added_.push_back(calls_.barrier()); }

CollectiveCall CoalescedCalls::join(size_t small_bytes) && {
  CollectiveCall all{.type = c10d::OpType::COALESCED};
  for (auto& call : added_) all.append(std::move(call));
  added_.clear();
  all.collectives = join_all_reduces(all.collectives, small_bytes);
  return all;
}

}  // namespace lockstep
