#include "lockstep/comm/backends/host_collectives.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/dense.h"
#include "lockstep/comm/collectives/tree_reduce.h"

namespace lockstep {

using shm::Operation;

namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class Results {
 public:
  explicit Results(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      results_.emplace_back(tensor);
      bytes_.push_back(results_.back().bytes());
    }
  }
  std::span<const Bytes> bytes() const { return bytes_; }
  void write_back() {
    for (auto& result : results_) result.write_back();
  }

 private:
  std::vector<Result> results_;
  std::vector<Bytes> bytes_;
};

class Inputs {
 public:
  explicit Inputs(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      tensors_.push_back(dense(tensor));
      bytes_.push_back(bytes_of(tensors_.back()));
    }
  }
  std::span<const ConstBytes> bytes() const { return bytes_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<ConstBytes> bytes_;
};

bool is_premul(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::PREMUL_SUM;
}

/// Returns the tree reduction, including the factor of a premul sum.
shm::Reduction all_reduction(at::ScalarType type, const c10d::ReduceOp& op) {
  shm::Reduction reduction = tree_reduction(type, op.op_);
  if (is_premul(op)) reduction.factor = factor_of(op);
  return reduction;
}

/// Scales `tensor` for a premul sum whose reduction does not scale it.
void scale_unless_combined(at::Tensor tensor, const c10d::ReduceOp& op,
                           const shm::Reduction& reduction) {
  if (is_premul(op) && !reduction.combine_scaled) {
    tensor.copy_(scaled(tensor, op));
  }
}

uint64_t hash_of(at::IntArrayRef sizes) {
  Fnv1a hash;
  for (const int64_t size : sizes) hash.add_unit(static_cast<uint64_t>(size));
  return hash.value();
}

/// Describes this rank's call, so that the other ranks can compare it with
/// their own. In debug detail, the description includes the tensor's shape.
shm::Call call_of(shm::Operation operation, const at::Tensor& tensor,
                  int root = -1, const c10d::ReduceOp* op = nullptr) {
  shm::Call call{.operation = operation, .root = root};
  call.type = shm::short_text(c10::toString(tensor.scalar_type()));
  if (op != nullptr) call.reduction = shm::short_text(name_of(op->op_));
  call.elements = static_cast<uint64_t>(tensor.numel());
  if (is_debug_detail()) call.shape_hash = hash_of(tensor.sizes());
  return call;
}

}  // namespace

bool is_debug_detail() {
  static const bool detailed = env("LOCKSTEP_DEBUG") == "detail";
  return detailed;
}

void HostCollectives::all_reduce(const at::Tensor& tensor,
                                 const c10d::ReduceOp& op, Timeout timeout) {
  Result result(tensor);
  const shm::Reduction reduction = all_reduction(tensor.scalar_type(), op);
  begin(call_of(Operation::kAllReduce, tensor, -1, &op), timeout);
  scale_unless_combined(result.dense(), op, reduction);
  all_reduce_bytes(result.bytes(), reduction);
  result.write_back();
}

// Each element is summed over the ranks independently, so its bits do not
// depend on its position in a message. Tensors that are copied into one message
// get the same sums as separate tensors. This costs two copies of each tensor,
// and saves all exchanges but one.
void HostCollectives::all_reduce_coalesced(const Tensors& tensors,
                                           const c10d::ReduceOp& op,
                                           Timeout timeout) {
  if (tensors.empty()) return;
  Results results(tensors);
  shm::Call call = call_of(Operation::kAllReduce, tensors[0], -1, &op);
  const shm::Reduction reduction = all_reduction(tensors[0].scalar_type(), op);
  // The hash of the sizes detects ranks that join different tensors to a
  // message of the same size, not only in debug detail.
  Fnv1a sizes;
  size_t bytes = 0;
  call.elements = 0;
  for (const auto& tensor : tensors) {
    sizes.add_unit(static_cast<uint64_t>(tensor.numel()));
    call.elements += static_cast<uint64_t>(tensor.numel());
    bytes += tensor.nbytes();
  }
  call.shape_hash = sizes.value();
  const Bytes message = message_of(bytes);
  std::byte* end = message.data();
  for (const Bytes part : results.bytes()) {
    end = std::copy(part.begin(), part.end(), end);
  }
  begin(call, timeout);
  scale_unless_combined(message_.narrow(0, 0, static_cast<int64_t>(bytes))
                            .view(tensors[0].scalar_type()),
                        op, reduction);
  all_reduce_bytes(message, reduction);
  const std::byte* from = message.data();
  for (const Bytes part : results.bytes()) {
    std::copy_n(from, part.size(), part.begin());
    from += part.size();
  }
  results.write_back();
}

std::span<std::byte> HostCollectives::message_of(size_t bytes) {
  if (!message_.defined() || message_.nbytes() < bytes) {
    message_ = torch::empty({static_cast<int64_t>(bytes)}, torch::kUInt8);
  }
  return bytes_of(message_).first(bytes);
}

void HostCollectives::reduce(const at::Tensor& tensor, int root,
                             const c10d::ReduceOp& op, Timeout timeout) {
  Result result(tensor);
  const shm::Reduction reduction = tree_reduction(tensor.scalar_type(), op.op_);
  begin(call_of(Operation::kReduce, tensor, root, &op), timeout);
  if (is_premul(op)) {
    at::Tensor product = scaled(result.dense(), op).contiguous();
    reduce_bytes(bytes_of(product), root, reduction);
    if (rank_ == root) tensor.copy_(product);
    return;
  }
  reduce_bytes(result.bytes(), root, reduction);
  if (rank_ == root) result.write_back();
}

void HostCollectives::broadcast(const at::Tensor& tensor, int root,
                                Timeout timeout) {
  Result result(tensor);
  begin(call_of(Operation::kBroadcast, tensor, root), timeout);
  broadcast_bytes(result.bytes(), root);
  if (rank_ != root) result.write_back();
}

void HostCollectives::all_gather(const Tensors& outputs,
                                 const at::Tensor& input, Timeout timeout) {
  check_parts(outputs, input, size_, "all_gather");
  const at::Tensor dense_input = dense(input);
  Results results(outputs);
  begin(call_of(Operation::kAllGather, input), timeout);
  all_gather_bytes(bytes_of(dense_input), results.bytes());
  results.write_back();
}

void HostCollectives::gather(const Tensors& outputs, const at::Tensor& input,
                             int root, Timeout timeout) {
  if (rank_ == root) check_parts(outputs, input, size_, "gather");
  const at::Tensor dense_input = dense(input);
  Results results(rank_ == root ? outputs : Tensors());
  begin(call_of(Operation::kGather, input, root), timeout);
  gather_bytes(bytes_of(dense_input), results.bytes(), root);
  results.write_back();
}

void HostCollectives::scatter(const at::Tensor& output, const Tensors& inputs,
                              int root, Timeout timeout) {
  if (rank_ == root) check_parts(inputs, output, size_, "scatter");
  Result result(output);
  const Inputs parts(rank_ == root ? inputs : Tensors());
  begin(call_of(Operation::kScatter, output, root), timeout);
  scatter_bytes(result.bytes(), parts.bytes(), root);
  result.write_back();
}

void HostCollectives::reduce_scatter(const at::Tensor& output,
                                     const Tensors& inputs,
                                     const c10d::ReduceOp& op,
                                     Timeout timeout) {
  check_parts(inputs, output, size_, "reduce_scatter");
  Result result(output);
  Tensors parts = inputs;
  if (is_premul(op)) {
    for (auto& part : parts) part = scaled(part, op);
  }
  const Inputs dense_parts(parts);
  const shm::Reduction reduction = tree_reduction(output.scalar_type(), op.op_);
  begin(call_of(Operation::kReduceScatter, output, -1, &op), timeout);
  reduce_scatter_bytes(result.bytes(), dense_parts.bytes(), reduction);
  result.write_back();
}

void HostCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                 Timeout timeout) {
  const auto size = static_cast<size_t>(size_);
  if (outputs.size() != size || inputs.size() != size) {
    throw CommError(
        {.code = ErrorCode::kBadTensor,
         .what = "all_to_all needs a tensor to and from each rank",
         .expected = fmt::format("{} and {}", size, size),
         .got = fmt::format("{} and {}", inputs.size(), outputs.size())});
  }
  Results results(outputs);
  const Inputs parts(inputs);
  shm::Call call{.operation = Operation::kAllToAll};
  call.type = shm::short_text(c10::toString(inputs[0].scalar_type()));
  begin(call, timeout);
  all_to_all_bytes(results.bytes(), parts.bytes());
  results.write_back();
}

void HostCollectives::barrier(Timeout timeout) {
  begin({.operation = Operation::kBarrier}, timeout);
  wait_for_all();
}

}  // namespace lockstep
