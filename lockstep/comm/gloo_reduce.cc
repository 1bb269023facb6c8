// Sums over Gloo, which moves the bytes, in the order of tree_reduce.h.
#include <algorithm>
#include <array>

#include "lockstep/comm/call_of.h"
#include "lockstep/comm/dense.h"
#include "lockstep/comm/gloo_collectives.h"
#include "lockstep/comm/tree_reduce.h"

namespace lockstep {

using shm::Operation;

namespace {

// Up to here every rank gets all of every rank and sums it: one exchange
// rather than two.
constexpr int64_t kOneShotBytes = 16 * 1024;
// Sums of one chunk are computed while the next is on its way.
constexpr int64_t kChunkBytes = 4 << 20;

/// Reduces `size` pieces of equal length, one after another in `pieces`.
void combine(const shm::Reduction& reduction, const at::Tensor& pieces,
             int size, std::byte* output, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(pieces.const_data_ptr());
  const size_t step =
      static_cast<size_t>(pieces.numel()) / static_cast<size_t>(size);
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(first + static_cast<size_t>(rank) * step);
  }
  if (bytes > 0) {
    reduction.combine(inputs, output, bytes / reduction.element_bytes);
  }
}

}  // namespace

void GlooCollectives::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op,
                                 Timeout timeout) {
  Result result(tensor);
  const shm::Reduction reduction = tree_reduction(tensor.scalar_type(), op.op_);
  run(call_of(Operation::kAllReduce, tensor, -1, &op), timeout, [&] {
    const at::Tensor own = op.op_ == c10d::ReduceOp::PREMUL_SUM
                               ? dense(scaled(result.dense(), op))
                               : result.dense();
    const at::Tensor bytes = byte_view(own);
    reduce_bytes(bytes, byte_view(result.dense()), reduction, timeout);
    result.write_back();
  });
}

// Each chunk is cut in a piece for each rank, which gets the others' pieces,
// sums them and sends the sum to all. While it sums one chunk, the next is on
// its way. Gloo reads and writes the tensors where they are.
void GlooCollectives::reduce_bytes(const at::Tensor& input,
                                   const at::Tensor& output,
                                   const shm::Reduction& reduction,
                                   Timeout timeout) {
  struct Slot {
    at::Tensor theirs, sum;
    Work exchange, gather;
  };
  std::array<Slot, 2> slots;
  const int64_t count = input.numel();
  // Whole cache lines, and so whole elements, for each rank.
  const int64_t unit = int64_t{64} * size_;
  if (count <= std::max(kOneShotBytes, unit)) {
    combine(reduction, gathered(input, timeout), size_,
            static_cast<std::byte*>(output.data_ptr()),
            static_cast<size_t>(count));
    return;
  }
  const int64_t chunk = std::min(kChunkBytes, count) / unit * unit;
  const int64_t whole = count / chunk;
  for (Slot& slot : slots) {
    slot.theirs = new_bytes(chunk);
    slot.sum = new_bytes(chunk / size_);
  }
  const auto start = [&](int64_t k) {
    std::vector<int64_t> even;
    at::Tensor mine = input.narrow(0, k * chunk, chunk);
    Slot& slot = slots[static_cast<size_t>(k % 2)];
    slot.exchange = gloo_->alltoall_base(slot.theirs, mine, even, even,
                                         {.timeout = timeout});
  };
  start(0);
  for (int64_t k = 0; k < whole; ++k) {
    if (k + 1 < whole) start(k + 1);
    Slot& slot = slots[static_cast<size_t>(k % 2)];
    slot.exchange->wait();
    if (slot.gather) slot.gather->wait();  // of the last but one: reads the sum
    combine(reduction, slot.theirs, size_,
            static_cast<std::byte*>(slot.sum.data_ptr()),
            static_cast<size_t>(slot.sum.numel()));
    at::Tensor all = output.narrow(0, k * chunk, chunk);
    slot.gather = gloo_->_allgather_base(all, slot.sum, {.timeout = timeout});
  }
  for (Slot& slot : slots) {
    if (slot.gather) slot.gather->wait();
  }
  const int64_t rest = count - whole * chunk;
  if (rest == 0) return;
  reduce_bytes(input.narrow(0, whole * chunk, rest),
               output.narrow(0, whole * chunk, rest), reduction, timeout);
}

void GlooCollectives::reduce(at::Tensor& tensor, int root,
                             const c10d::ReduceOp& op, Timeout timeout) {
  at::Tensor sum = rank_ == root ? tensor : tensor.clone();
  all_reduce(sum, op, timeout);
}

void GlooCollectives::reduce_scatter(at::Tensor& output, const Tensors& inputs,
                                     const c10d::ReduceOp& op,
                                     Timeout timeout) {
  check_parts(inputs, output, size_, "reduce_scatter");
  Result result(output);
  const shm::Reduction reduction = tree_reduction(output.scalar_type(), op.op_);
  run(call_of(Operation::kReduceScatter, output, -1, &op), timeout, [&] {
    if (output.numel() == 0) return;
    Tensors bytes;
    for (const auto& input : inputs) {
      bytes.push_back(byte_view(dense(
          op.op_ == c10d::ReduceOp::PREMUL_SUM ? scaled(input, op) : input)));
    }
    at::Tensor mine = torch::cat(bytes);
    at::Tensor theirs = torch::empty_like(mine);
    exchange(theirs, mine, {}, {}, timeout);
    combine(reduction, theirs, size_, result.bytes().data(),
            result.bytes().size());
    result.write_back();
  });
}

}  // namespace lockstep
