#include "lockstep/comm/moves.h"

#include <algorithm>
#include <span>

#include "lockstep/base/checksum.h"
#include "lockstep/comm/dense.h"
#include "lockstep/comm/sparse_all_reduce.h"
#include "lockstep/comm/tree_reduce.h"

namespace lockstep {

using transport::Bytes;
using transport::ConstBytes;
using transport::Operation;
using transport::Reduction;

namespace {

using Tensors = std::vector<at::Tensor>;

class Results {
 public:
  explicit Results(at::TensorList tensors) {
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
  explicit Inputs(at::TensorList tensors) {
    for (const auto& tensor : tensors) {
      tensors_.push_back(dense(tensor));
      bytes_.push_back(bytes_of_dense(tensors_.back()));
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
transport::Reduction all_reduction(at::ScalarType type,
                                   const c10d::ReduceOp& op) {
  Reduction reduction = tree_reduction(type, op.op_);
  if (is_premul(op)) reduction.factor = factor_of(op);
  return reduction;
}

/// Scales `tensor` for a premul sum whose reduction does not scale it.
void scale_unless_combined(at::Tensor tensor, const c10d::ReduceOp& op,
                           const Reduction& reduction) {
  if (is_premul(op) && !reduction.combine_scaled) {
    copy_to(tensor, scaled(tensor, op));
  }
}

uint64_t hash_of(at::IntArrayRef sizes) {
  Fnv1a hash;
  for (const int64_t size : sizes) hash.add_unit(static_cast<uint64_t>(size));
  return hash.value();
}

/// Describes this rank's call, so that the other ranks can compare it with
/// their own. In debug detail, the description includes the tensor's shape.
transport::Call call_of(transport::Operation operation,
                        const at::Tensor& tensor, int root,
                        const c10d::ReduceOp* op) {
  transport::Call call{.operation = operation, .root = root};
  call.type = transport::short_text(c10::toString(tensor.scalar_type()));
  if (op != nullptr) call.reduction = transport::short_text(name_of(op->op_));
  call.elements = static_cast<uint64_t>(tensor.numel());
  if (transport::is_debug_detail()) call.shape_hash = hash_of(tensor.sizes());
  return call;
}

bool are_equally_long(at::TensorList tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors[0].numel();
  });
}

/// Returns equal parts of `bytes`, one for each rank.
template <typename Byte>
std::vector<std::span<Byte>> parts_of(std::span<Byte> bytes, int ranks) {
  std::vector<std::span<Byte>> parts;
  const size_t part_bytes = bytes.size() / static_cast<size_t>(ranks);
  for (int r = 0; r < ranks; ++r) {
    parts.push_back(
        bytes.subspan(static_cast<size_t>(r) * part_bytes, part_bytes));
  }
  return parts;
}

}  // namespace

void Moves::begin(transport::Operation operation, const at::Tensor& tensor,
                  int root, const c10d::ReduceOp* op) const {
  bytes_.begin(call_of(operation, tensor, root, op), timeout_);
}

void Moves::all_reduce(const at::Tensor& tensor,
                       const c10d::ReduceOp& op) const {
  if (size_ == 1 && !is_premul(op)) return;
  if (tensor.is_sparse()) {
    sparse_all_reduce(tensor, op, size_,
                      [&](const Tensors& outputs, const at::Tensor& input) {
                        all_gather(outputs, input);
                      });
    return;
  }
  Result result(tensor);
  const Reduction reduction = all_reduction(tensor.scalar_type(), op);
  begin(Operation::kAllReduce, tensor, -1, &op);
  scale_unless_combined(result.dense(), op, reduction);
  bytes_.all_reduce(result.bytes(), reduction);
  result.write_back();
}

void Moves::reduce(const at::Tensor& tensor, int root,
                   const c10d::ReduceOp& op) const {
  Result result(tensor);
  const Reduction reduction = tree_reduction(tensor.scalar_type(), op.op_);
  begin(Operation::kReduce, tensor, root, &op);
  if (is_premul(op)) {
    at::Tensor product = scaled(result.dense(), op).contiguous();
    bytes_.reduce(bytes_of_dense(product), root, reduction);
    if (rank_ == root) copy_and_wait(tensor, product);
    return;
  }
  bytes_.reduce(result.bytes(), root, reduction);
  if (rank_ == root) result.write_back();
}

void Moves::broadcast(const at::Tensor& tensor, int root) const {
  if (size_ == 1) return;
  Result result(tensor);
  begin(Operation::kBroadcast, tensor, root);
  bytes_.broadcast(result.bytes(), root);
  if (rank_ != root) result.write_back();
}

void Moves::all_gather(at::TensorList outputs, const at::Tensor& input) const {
  const at::Tensor own = dense(input);
  Results results(outputs);
  begin(Operation::kAllGather, input);
  bytes_.all_gather(bytes_of_dense(own), results.bytes());
  results.write_back();
}

void Moves::all_gather_into_tensor(const at::Tensor& output,
                                   const at::Tensor& input) const {
  const at::Tensor own = dense(input);
  Result result(output);
  begin(Operation::kAllGather, input);
  bytes_.all_gather(bytes_of_dense(own), parts_of(result.bytes(), size_));
  result.write_back();
}

void Moves::gather(at::TensorList outputs, const at::Tensor& input,
                   int root) const {
  const at::Tensor own = dense(input);
  Results results(outputs);
  begin(Operation::kGather, input, root);
  bytes_.gather(bytes_of_dense(own), results.bytes(), root);
  results.write_back();
}

void Moves::scatter(const at::Tensor& output, at::TensorList inputs,
                    int root) const {
  Result result(output);
  const Inputs parts(inputs);
  begin(Operation::kScatter, output, root);
  bytes_.scatter(result.bytes(), parts.bytes(), root);
  result.write_back();
}

void Moves::reduce_scatter(const at::Tensor& output, at::TensorList inputs,
                           const c10d::ReduceOp& op) const {
  if (!are_equally_long(inputs)) return reduce_each(output, inputs, op);
  Result result(output);
  Tensors terms = inputs.vec();
  if (is_premul(op)) {
    for (auto& term : terms) term = scaled(term, op);
  }
  const Inputs parts(terms);
  const Reduction reduction = tree_reduction(output.scalar_type(), op.op_);
  begin(Operation::kReduceScatter, output, -1, &op);
  bytes_.reduce_scatter(result.bytes(), parts.bytes(), reduction);
  result.write_back();
}

void Moves::reduce_each(const at::Tensor& output, at::TensorList inputs,
                        const c10d::ReduceOp& op) const {
  for (int root = 0; root < size_; ++root) {
    const at::Tensor& part = inputs[static_cast<size_t>(root)];
    if (rank_ == root) copy_and_wait(output, part.reshape(output.sizes()));
    reduce(rank_ == root ? output : part, root, op);
  }
}

void Moves::reduce_scatter_tensor(const at::Tensor& output,
                                  const at::Tensor& input,
                                  const c10d::ReduceOp& op) const {
  reduce_scatter(output, dense(input).view({-1}).tensor_split(size_, 0), op);
}

void Moves::all_to_all(at::TensorList outputs, at::TensorList inputs) const {
  Results results(outputs);
  const Inputs parts(inputs);
  // Sizes may differ between ranks, so they are not announced.
  transport::Call announced{.operation = Operation::kAllToAll};
  announced.type =
      transport::short_text(c10::toString(inputs[0].scalar_type()));
  bytes_.begin(announced, timeout_);
  bytes_.all_to_all(results.bytes(), parts.bytes());
  results.write_back();
}

void Moves::barrier() const {
  bytes_.begin({.operation = Operation::kBarrier}, timeout_);
  bytes_.barrier();
}

}  // namespace lockstep
