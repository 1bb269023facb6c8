// Tests that every backend refuses invalid arguments at the call, only on that
// rank, and that later calls still work.

#include <array>
#include <functional>
#include <limits>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Op = ReduceOp::RedOpType;

/// `act` must be refused with the code, and a message that names `operation`.
template <typename Act>
void refused(const std::string& operation, ErrorCode code, const Act& act) {
  try {
    act();
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    require(error.code() == code && what.find(operation) != std::string::npos,
            "refused by " + operation + "; it says: " + what);
    return;
  }
  require(false, "not refused: " + operation);
}

at::Tensor some(int64_t count = 4) { return torch::ones({count}); }

void refuse_roots(const ProcessGroup& world) {
  const int size = world.size();
  at::Tensor tensor = some();
  const Tensors parts(static_cast<size_t>(size), some());
  for (const int root : {-1, size, 5'000'000}) {
    refused("broadcast", ErrorCode::kBadRank,
            [&] { world.broadcast(tensor, root); });
    refused("reduce", ErrorCode::kBadRank, [&] { world.reduce(tensor, root); });
    refused("gather", ErrorCode::kBadRank, [&] { world.gather(tensor, root); });
    refused("scatter", ErrorCode::kBadRank,
            [&] { world.scatter(tensor, parts, root); });
  }
  const Tensors too_many(static_cast<size_t>(size) + 1, some());
  const Tensors too_large(static_cast<size_t>(size), some(5));
  const Tensors int_tensors(static_cast<size_t>(size),
                            some().to(torch::kInt32));
  for (const auto& bad : {too_many, too_large, int_tensors}) {
    refused("reduce_scatter", ErrorCode::kBadTensor,
            [&] { world.reduce_scatter(tensor, bad); });
    if (world.rank() == size - 1) {
      refused("scatter", ErrorCode::kBadTensor,
              [&] { world.scatter(tensor, bad, size - 1); });
    }
  }
  Tensors outputs = too_many;
  refused("all_to_all", ErrorCode::kBadTensor,
          [&] { world.all_to_all(outputs, too_many); });
}

void refuse_tensors(c10d::Backend& backend) {
  const auto size = static_cast<size_t>(backend.getSize());
  const at::Tensor dense = some();
  const Tensors kinds{
      at::Tensor(),
      torch::empty({4}, torch::kMeta),
      torch::eye(2).to_sparse_csr(),
      torch::quantize_per_tensor(some(), 0.1, 0, torch::kQInt8),
  };
  for (const auto& bad : kinds) {
    Tensors list{bad};
    refused("all_reduce", ErrorCode::kBadTensor,
            [&] { backend.allreduce(list, {}); });
    refused("broadcast", ErrorCode::kBadTensor,
            [&] { backend.broadcast(list, {}); });
    refused("reduce", ErrorCode::kBadTensor, [&] { backend.reduce(list, {}); });
    refused("all_gather", ErrorCode::kBadTensor, [&] {
      Lists outputs{Tensors(size, dense)};
      backend.allgather(outputs, list, {});
    });
  }
  Tensors expanded{torch::ones({1}).expand({4})};
  refused("all_reduce", ErrorCode::kBadTensor,
          [&] { backend.allreduce(expanded, {}); });
  Tensors none, two{some(), some()};
  for (Tensors* list : {&none, &two}) {
    refused("all_reduce", ErrorCode::kBadTensor,
            [&] { backend.allreduce(*list, {}); });
    refused("broadcast", ErrorCode::kBadTensor,
            [&] { backend.broadcast(*list, {}); });
    refused("reduce", ErrorCode::kBadTensor,
            [&] { backend.reduce(*list, {}); });
  }
  Tensors sparse{some().to_sparse()};
  refused("broadcast", ErrorCode::kBadTensor,
          [&] { backend.broadcast(sparse, {}); });
  refused("sparse", ErrorCode::kBadTensor,
          [&] { backend.allreduce(sparse, {.reduceOp = Op::MAX}); });
  Tensors complex{torch::ones({4}, torch::kComplexFloat)};
  refused("min", ErrorCode::kBadTensor,
          [&] { backend.allreduce(complex, {.reduceOp = Op::MIN}); });
  Tensors wide{torch::ones({4}).to(torch::kUInt16)};
  refused("sum", ErrorCode::kBadTensor, [&] { backend.allreduce(wide, {}); });
  Tensors list{some()};
  refused("broadcast", ErrorCode::kBadOption,
          [&] { backend.broadcast(list, {.rootRank = 0, .rootTensor = 1}); });
}

void refuse_lists(c10d::Backend& backend) {
  const auto size = static_cast<size_t>(backend.getSize());
  const auto rank = backend.getRank();
  const Tensors parts(size, some()), few(size - 1, some()),
      large(size, some(5));
  Tensors input{some()};
  for (const auto& bad : {few, large}) {
    Lists outputs{bad};
    refused("all_gather", ErrorCode::kBadTensor,
            [&] { backend.allgather(outputs, input, {}); });
    refused("reduce_scatter", ErrorCode::kBadTensor,
            [&] { backend.reduce_scatter(input, outputs, {}); });
    if (rank == 0) {
      refused("gather", ErrorCode::kBadTensor,
              [&] { backend.gather(outputs, input, {}); });
      refused("scatter", ErrorCode::kBadTensor,
              [&] { backend.scatter(input, outputs, {}); });
    }
  }
  if (rank != 0) {
    Lists lists{parts};
    refused("gather", ErrorCode::kBadTensor,
            [&] { backend.gather(lists, input, {}); });
    refused("scatter", ErrorCode::kBadTensor,
            [&] { backend.scatter(input, lists, {}); });
  }
  at::Tensor own = some(), whole = some(static_cast<int64_t>(size) * 4 + 1),
             ints = some(static_cast<int64_t>(size) * 4).to(torch::kInt32);
  for (at::Tensor& bad : std::array{std::ref(whole), std::ref(ints)}) {
    refused("all_gather_into_tensor", ErrorCode::kBadTensor,
            [&] { backend._allgather_base(bad, own, {}); });
    refused("reduce_scatter_tensor", ErrorCode::kBadTensor,
            [&] { backend._reduce_scatter_base(own, bad, {}); });
  }
  Tensors one{some()}, two{some(), some()};
  refused("all_gather_into_tensor", ErrorCode::kBadTensor,
          [&] { backend.allgather_into_tensor_coalesced(one, two, {}); });
  refused("reduce_scatter_tensor", ErrorCode::kBadTensor,
          [&] { backend.reduce_scatter_tensor_coalesced(one, two, {}); });
  Lists short_lists(size, one);
  refused("allgather_coalesced", ErrorCode::kBadTensor,
          [&] { backend.allgather_coalesced(short_lists, two, {}); });
  short_lists.pop_back();
  refused("allgather_coalesced", ErrorCode::kBadTensor,
          [&] { backend.allgather_coalesced(short_lists, one, {}); });
  // c10d's Gloo: "requires non-empty tensor list", "tensors must all have the
  // same type".
  Tensors none, mixed{some(), some().to(torch::kInt64)},
      devices{some(), torch::empty({4}, torch::kMeta)};
  refused("allreduce_coalesced", ErrorCode::kBadTensor,
          [&] { backend.allreduce_coalesced(none, {}); });
  for (Tensors* list : {&mixed, &devices}) {
    refused("allreduce_coalesced", ErrorCode::kBadTensor,
            [&] { backend.allreduce_coalesced(*list, {}); });
  }
}

void refuse_splits_and_peers(c10d::Backend& backend) {
  const int size = backend.getSize();
  at::Tensor rows = torch::ones({size * 2, 3}),
             out = torch::ones({size * 2, 3});
  std::vector<int64_t> even, few(static_cast<size_t>(size) - 1, 2),
      negative(static_cast<size_t>(size), 2), huge = negative;
  negative[0] = -2;
  negative[1] += 4;
  huge[0] = huge[1] = std::numeric_limits<int64_t>::max();
  for (auto* bad : {&few, &negative, &huge}) {
    refused("all_to_all_single", ErrorCode::kBadOption,
            [&] { backend.alltoall_base(out, rows, even, *bad, {}); });
    refused("all_to_all_single", ErrorCode::kBadOption,
            [&] { backend.alltoall_base(out, rows, *bad, even, {}); });
  }
  at::Tensor odd = torch::ones({size * 2 + 1, 3}), scalar = torch::ones({});
  for (at::Tensor& bad : std::array{std::ref(odd), std::ref(scalar)}) {
    refused("all_to_all_single", ErrorCode::kBadOption,
            [&] { backend.alltoall_base(out, bad, even, even, {}); });
  }
  Tensors list{some()}, two{some(), some()};
  const int next = (backend.getRank() + 1) % size;
  for (const int peer : {-1, size, backend.getRank()}) {
    refused("send", ErrorCode::kBadRank, [&] { backend.send(list, peer, 0); });
    refused("recv", ErrorCode::kBadRank, [&] { backend.recv(list, peer, 0); });
  }
  refused("send", ErrorCode::kBadOption, [&] { backend.send(list, next, -1); });
  refused("recv", ErrorCode::kBadOption,
          [&] { backend.recvAnysource(list, -1); });
  refused("send", ErrorCode::kBadTensor, [&] { backend.send(two, next, 0); });
}

const RankTasks refusals("refusals", [](const ProcessGroup& world) {
  refuse_roots(world);
  if (world.size() > 1) {
    refuse_tensors(*world.backend());
    refuse_lists(*world.backend());
    refuse_splits_and_peers(*world.backend());
  }
  // On one rank alone: nothing was sent, so the others did not notice.
  at::Tensor tensor = some();
  if (world.rank() == 0) {
    refused("broadcast", ErrorCode::kBadRank,
            [&] { world.broadcast(tensor, -3); });
  }
  world.all_reduce(tensor);
  require(
      torch::equal(tensor, torch::full({4}, static_cast<double>(world.size()))),
      "a sum after refusals");
});

}  // namespace
}  // namespace lockstep
