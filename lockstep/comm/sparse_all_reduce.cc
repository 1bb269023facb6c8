#include "lockstep/comm/sparse_all_reduce.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/dense.h"
#include "lockstep/comm/tree_reduce.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

// Layout of the description of a rank's tensor. The sizes come last.
constexpr int64_t kMaxDims = 64;
enum Entry : int64_t { kElements, kSparseDims, kDims, kSizes };

/// Returns the type in which values are summed: wide enough that the sum of
/// many ranks is rounded only once, at the end.
at::ScalarType sum_type(at::ScalarType type) {
  return c10::isReducedFloatingType(type) || c10::isFloat8Type(type)
             ? torch::kFloat32
             : type;
}

at::Tensor describe(const at::Tensor& tensor) {
  at::Tensor numbers = torch::zeros({kSizes + kMaxDims}, torch::kInt64);
  auto* out = numbers.data_ptr<int64_t>();
  out[kElements] = tensor._nnz();
  out[kSparseDims] = tensor.sparse_dim();
  out[kDims] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), out + kSizes);
  return numbers;
}

/// Returns the tensors of all ranks. They differ only in the size of their
/// first dimension, which is counts[r] for rank r. `tensor` is that of this
/// rank.
Tensors gather(GatherTensors all_gather, const at::Tensor& tensor,
               const std::vector<int64_t>& counts) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = *std::max_element(counts.begin(), counts.end());
  at::Tensor padded = torch::zeros(sizes, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  Tensors all;
  for (size_t r = 0; r < counts.size(); ++r) {
    all.push_back(torch::empty_like(padded));
  }
  all_gather(all, padded);
  for (size_t r = 0; r < counts.size(); ++r) {
    all[r] = all[r].narrow(0, 0, counts[r]);
  }
  return all;
}

at::Tensor tree_sum(const Tensors& tensors, size_t first, size_t last) {
  if (last - first == 1) return tensors[first];
  const size_t middle =
      first +
      static_cast<size_t>(left_branch(static_cast<int64_t>(last - first)));
  return (tree_sum(tensors, first, middle) + tree_sum(tensors, middle, last))
      .coalesce();
}

}  // namespace

void check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.defined() || !tensor.is_sparse() || !tensor.device().is_cpu() ||
      tensor.dim() > kMaxDims) {
    throw InvalidArgument(
        "comm",
        {.code = ErrorCode::kBadTensor,
         .what = "allreduce_sparse can't take this tensor",
         .expected = "a sparse tensor (COO) on cpu",
         .got = tensor.defined()
                    ? fmt::format("a {} {} tensor", c10::str(tensor.device()),
                                  c10::str(tensor.layout()))
                    : "an undefined tensor"});
  }
  if (op.op_ != c10d::ReduceOp::SUM && op.op_ != c10d::ReduceOp::AVG) {
    throw InvalidArgument("comm", {.code = ErrorCode::kBadTensor,
                                   .what = "an all_reduce of sparse tensors",
                                   .expected = "sum or avg",
                                   .got = name_of(op.op_)});
  }
  tree_reduction(tensor.scalar_type(), op.op_);
}

void sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                       int size, GatherTensors all_gather) {
  const at::Tensor own_tensor = tensor.coalesce();
  const at::Tensor shape = describe(own_tensor);
  Tensors shapes;
  for (int r = 0; r < size; ++r) shapes.push_back(torch::empty_like(shape));
  all_gather(shapes, shape);
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r) {
    const at::Tensor& peer_shape = shapes[static_cast<size_t>(r)];
    const auto* numbers = peer_shape.const_data_ptr<int64_t>();
    counts.push_back(numbers[kElements]);
    // Every rank compares with rank 0, so that all ranks get the same result.
    const auto without_count = [](const at::Tensor& t) {
      return t.slice(0, 1);
    };
    if (torch::equal(without_count(peer_shape), without_count(shapes[0])))
      continue;
    const auto sizes_of = [](const at::Tensor& t) {
      const auto* all = t.const_data_ptr<int64_t>();
      return c10::str(at::IntArrayRef(all + kSizes, all + kSizes + all[kDims]),
                      ", ", all[kSparseDims], " of them sparse");
    };
    throw CommError(
        {.code = ErrorCode::kCallsDiffer,
         .what =
             fmt::format("all_reduce of sparse tensors: ranks 0 and {} have "
                         "different shapes",
                         r),
         .expected = fmt::format("{} as on rank 0", sizes_of(shapes[0])),
         .got = sizes_of(peer_shape),
         .fix = "give all ranks tensors of one shape"});
  }
  const at::ScalarType type = tensor.scalar_type();
  // (elements, sparse dimensions), and (elements, dense sizes...).
  const Tensors indices = gather(all_gather, own_tensor.indices().t(), counts);
  const Tensors values = gather(all_gather, own_tensor.values(), counts);
  Tensors parts;
  for (size_t r = 0; r < counts.size(); ++r) {
    parts.push_back(torch::sparse_coo_tensor(indices[r].t(),
                                             values[r].to(sum_type(type)),
                                             own_tensor.sizes())
                        ._coalesced_(true));
  }
  at::Tensor sum = tree_sum(parts, 0, parts.size());
  at::Tensor sum_of_values = sum.values();
  if (op.op_ == c10d::ReduceOp::AVG) {
    sum_of_values = c10::isIntegralType(type, false)
                        ? torch::div(sum_of_values, size, "trunc")
                        : sum_of_values / size;
  }
  copy_to(tensor, torch::sparse_coo_tensor(
                      sum.indices(), sum_of_values.to(type), own_tensor.sizes())
                      ._coalesced_(true));
}

}  // namespace lockstep
