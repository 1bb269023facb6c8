// Reductions of lists and of sparse tensors, and of integers that overflow.

#include <limits>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/torch_compat.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = ReduceOp::RedOpType;

at::Tensor filled(double value, int64_t count = 6) {
  return torch::full({count}, value);
}

const RankTasks coalesced("coalesced", [](const ProcessGroup& world) {
  if (world.size() == 1) return;
  const auto backend = world.backend();
  const double own = world.rank() + 1;
  const double sum = world.size() * (world.size() + 1) / 2.0;
  const at::Tensor rows = filled(own).view({2, 3});
  Tensors list{filled(10 * own), rows.select(1, 0), rows.select(1, 1),
               rows.select(1, 2)};
  backend->allreduce_coalesced(list, {})->wait();
  require(torch::equal(list[0], filled(10 * sum)), "a dense tensor");
  require(torch::equal(rows, filled(sum).view({2, 3})), "columns of a tensor");
});

// If ranks share memory, a sum copies nothing if the tensors of all ranks are
// in the same shared memory, at any offset. The bits are the same as for
// private tensors.
const RankTasks places("places", [](const ProcessGroup& world) {
  if (!world.can_share_memory()) return;
  constexpr int64_t kElements = 30'000;
  constexpr size_t kPlaceBytes = kElements * 8 + 64;
  const int rank = world.rank();
  const SharedMemory memory = world.shared_memory(4 * kPlaceBytes);
  const SharedMemory other = world.shared_memory(kPlaceBytes);
  for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16,
                          torch::kInt32, torch::kComplexFloat}) {
    const at::Tensor values =
        ((torch::arange(kElements, torch::kDouble) + 1000 * rank).sin() * 100)
            .to(type);
    const auto place = [&](const SharedMemory& in, size_t at) {
      at::Tensor tensor = in.tensor(rank, at * kPlaceBytes, {kElements}, type);
      tensor.copy_(values);
      return tensor;
    };
    const ReduceOp weighted = make_pre_mul_sum(0.3 + 0.1 * rank);
    for (const ReduceOp& op : {ReduceOp(Op::SUM), weighted}) {
      at::Tensor expected = values.clone();
      world.all_reduce(expected, op);
      const auto check = [&](at::Tensor tensor) {
        world.all_reduce(tensor, op);
        require(torch::equal(tensor, expected),
                std::string("all_reduce of ") + c10::toString(type));
      };
      check(place(memory, 1));
      check(place(memory, static_cast<size_t>(rank) % 4));
      check(rank == 1 ? place(other, 0) : place(memory, 2));
      check(rank == 0 ? values.clone() : place(memory, 3));
    }
  }
});

const RankTasks wrap("wrap", [](const ProcessGroup& world) {
  const int size = world.size();
  for (const auto type : {torch::kInt8, torch::kUInt8, torch::kInt16,
                          torch::kInt32, torch::kInt64}) {
    const auto options = torch::TensorOptions(type);
    const auto largest = [&]() -> int64_t {
      if (type == torch::kUInt8) return 255;
      return std::numeric_limits<int64_t>::max() >>
             (64 - 8 * static_cast<int>(c10::elementSize(type)));
    }();
    const at::Tensor own = torch::full({5}, largest, options);
    at::Tensor sum = own.clone(), product = own.clone();
    world.all_reduce(sum);
    world.all_reduce(product, Op::PRODUCT);
    at::Tensor expected_sum = own.clone(), expected_product = own.clone();
    for (int r = 1; r < size; ++r) {
      expected_sum += own;
      expected_product *= own;
    }
    require(torch::equal(sum, expected_sum), "a sum that overflows");
    require(torch::equal(product, expected_product),
            "a product that overflows");
  }
});

/// Row r of every third row, with values of its own, on each rank others.
at::Tensor sparse_of(int rank, at::ScalarType type) {
  const int64_t elements = rank % 3 == 2 ? 0 : 3 + rank;
  at::Tensor indices = torch::empty({2, elements}, torch::kInt64);
  for (int64_t i = 0; i < elements; ++i) {
    indices[0][i] = (i * 3 + rank) % 7;  // some of them twice
    indices[1][i] = i % 2;
  }
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank));
  const at::Tensor values =
      (torch::randn({elements, 4}, generator, torch::kFloat64) * 8).to(type);
  return torch::sparse_coo_tensor(indices, values, {7, 2, 4});
}

const RankTasks sparse_reductions("sparse", [](const ProcessGroup& world) {
  if (world.size() == 1) return;
  const auto backend_of_group = world.backend();
  auto& backend = *backend_of_group;
  const int size = world.size();
  for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16,
                          torch::kInt64, torch::kComplexFloat}) {
    for (const Op op : {Op::SUM, Op::AVG}) {
      // The dense sum of the same is the oracle, bit for bit; but that +0 may
      // be -0 where no rank has an element.
      at::Tensor dense = sparse_of(world.rank(), type).coalesce().to_dense();
      world.all_reduce(dense, op);
      const at::Tensor tensor = sparse_of(world.rank(), type);
      Tensors list{tensor};
      const auto work = backend.allreduce(list, {.reduceOp = op});
      work->wait();
      require(tensor.is_sparse() && tensor.is_coalesced() &&
                  torch::equal(tensor.to_dense(), dense),
              std::string("a sparse all_reduce of ") + c10::toString(type));
      require(work->getFuture()->value().toTensorVector()[0].is_same(tensor),
              "the result of a sparse all_reduce");
    }
  }
  // ProcessGroup's form, and all ranks empty.
  at::Tensor none = torch::sparse_coo_tensor(
      torch::empty({1, 0}, torch::kInt64), torch::empty({0}), {5});
  world.all_reduce(none);
  require(none._nnz() == 0, "a sum of nothing");
  // Other shapes are found by all ranks.
  Tensors odd{torch::zeros({3 + world.rank()}).to_sparse()};
  bool has_thrown = false;
  try {
    backend.allreduce(odd, {})->wait();
  } catch (const CommError& error) {
    has_thrown = error.code() == ErrorCode::kCallsDiffer;
  }
  require(has_thrown, "sparse tensors of other shapes");
  at::Tensor after = filled(1);
  world.all_reduce(after);
  require(torch::equal(after, filled(size)), "a sum after that");
});

}  // namespace
}  // namespace lockstep
