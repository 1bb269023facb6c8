// Tests every backend against plain loops over the data of all ranks.

#include <bit>
#include <set>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/torch_compat.h"
#include "tests/comm/rank_data.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Op = ReduceOp::RedOpType;
using Tensors = std::vector<at::Tensor>;

std::string describe(at::ScalarType type, int64_t count, const char* what) {
  return std::string(what) + " of " + std::to_string(count) + " x " +
         c10::toString(type);
}

at::ScalarType accumulate_in(at::ScalarType type) {
  const bool is_small =
      c10::isReducedFloatingType(type) || c10::isFloat8Type(type);
  return is_small ? torch::kFloat32 : type;
}

at::Tensor apply(Op op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case Op::PRODUCT:
      return a * b;
    case Op::MIN:
      return torch::minimum(a, b);
    case Op::MAX:
      return torch::maximum(a, b);
    case Op::BAND:
      return torch::bitwise_and(a, b);
    case Op::BOR:
      return torch::bitwise_or(a, b);
    case Op::BXOR:
      return torch::bitwise_xor(a, b);
    default:
      return a + b;
  }
}

at::Tensor tree(Op op, const Tensors& inputs, size_t first, size_t last) {
  if (last - first == 1) return inputs[first];
  const size_t middle = first + std::bit_floor(last - first - 1);
  return apply(op, tree(op, inputs, first, middle),
               tree(op, inputs, middle, last));
}

at::Tensor reduced(Op op, int ranks, int64_t count, at::ScalarType type,
                   uint64_t salt = 0) {
  Tensors inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(data_of(rank, count, type, salt).to(accumulate_in(type)));
  }
  at::Tensor result = tree(op, inputs, 0, inputs.size());
  if (op == Op::AVG) {
    result = c10::isIntegralType(type, false)
                 ? torch::floor_divide(result, ranks)
                 : result / ranks;
  }
  return result.to(type);
}

bool is_defined(Op op, at::ScalarType type) {
  switch (op) {
    case Op::MIN:
    case Op::MAX:
      return !c10::isComplexType(type) && !c10::isFloat8Type(type);
    case Op::BAND:
    case Op::BOR:
    case Op::BXOR:
      return c10::isIntegralType(type, true);
    case Op::AVG:
      return type != torch::kBool;
    default:
      return true;
  }
}

// 0, 1, odd, unaligned; below and above what is done in one exchange.
constexpr std::array<int64_t, 5> kCounts{0, 1, 17, 1001, 70'001};

const RankTasks all_reduce("all_reduce", [](const ProcessGroup& world) {
  for (const auto type : all_types()) {
    for (const Op op : {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX,
                        Op::BAND, Op::BOR, Op::BXOR}) {
      if (!is_defined(op, type)) continue;
      for (const int64_t count : kCounts) {
        if (count > 2000 && op != Op::SUM) continue;
        at::Tensor tensor = data_of(world.rank(), count, type);
        world.all_reduce(tensor, op);
        const at::Tensor expected = reduced(op, world.size(), count, type);
        // torch's vector code rounds complex products and quotients otherwise
        // than std::complex: to 1e-6 (complex64) of their size.
        const bool is_close = c10::isComplexType(type) &&
                              (op == Op::PRODUCT || op == Op::AVG) &&
                              torch::allclose(tensor, expected, 1e-6, 1e-6);
        require(is_close || same(tensor, expected),
                describe(type, count, "all_reduce"));
      }
    }
  }
});

const RankTasks reductions("reductions", [](const ProcessGroup& world) {
  const int size = world.size();
  for (const auto type : all_types()) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < size; root += 3) {
        const at::Tensor own = data_of(world.rank(), count, type);
        at::Tensor tensor = own.clone();
        world.reduce(tensor, root);
        require(same(tensor, world.rank() == root
                                 ? reduced(Op::SUM, size, count, type)
                                 : own),
                describe(type, count, "reduce"));
      }
      Tensors parts;
      for (int part = 0; part < size; ++part) {
        parts.push_back(
            data_of(world.rank(), count, type, static_cast<uint64_t>(part)));
      }
      at::Tensor output = torch::zeros({count}, type);
      world.reduce_scatter(output, parts);
      require(same(output, reduced(Op::SUM, size, count, type,
                                   static_cast<uint64_t>(world.rank()))),
              describe(type, count, "reduce_scatter"));
    }
  }
  if (world.size() == 1) return;
  // premul_sum: each rank's own factor.
  at::Tensor tensor = torch::full({1000}, 2.0);
  world.all_reduce(tensor, make_pre_mul_sum(world.rank() + 0.5));
  const double expected = size * (size - 1) + size;
  require(torch::equal(tensor, torch::full({1000}, expected)), "premul_sum");
});

const RankTasks moves("moves", [](const ProcessGroup& world) {
  const int size = world.size();
  const int rank = world.rank();
  for (const auto type : all_types()) {
    for (const int64_t count : kCounts) {
      const at::Tensor own = data_of(rank, count, type);
      for (int root = 0; root < size; root += 3) {
        at::Tensor tensor = own.clone();
        world.broadcast(tensor, root);
        require(same(tensor, data_of(root, count, type)),
                describe(type, count, "broadcast"));
        const Tensors gathered = world.gather(own, root).result();
        require(gathered.size() == static_cast<size_t>(rank == root ? size : 0),
                "gather: tensors");
        for (int r = 0; r < static_cast<int>(gathered.size()); ++r) {
          require(
              same(gathered[static_cast<size_t>(r)], data_of(r, count, type)),
              describe(type, count, "gather"));
        }
        Tensors parts;
        for (int r = 0; r < size; ++r) parts.push_back(data_of(r, count, type));
        at::Tensor output = torch::zeros({count}, type);
        world.scatter(output, rank == root ? parts : Tensors(), root);
        require(same(output, own), describe(type, count, "scatter"));
      }
      const Tensors all = world.all_gather(own).result();
      Tensors outputs, inputs;
      for (int r = 0; r < size; ++r) {
        require(same(all[static_cast<size_t>(r)], data_of(r, count, type)),
                describe(type, count, "all_gather"));
        // Rank q sends rank r q + r elements more.
        inputs.push_back(
            data_of(rank, count + rank + r, type, static_cast<uint64_t>(r)));
        outputs.push_back(torch::zeros({count + rank + r}, type));
      }
      world.all_to_all(outputs, inputs);
      for (int r = 0; r < size; ++r) {
        require(same(outputs[static_cast<size_t>(r)],
                     data_of(r, count + rank + r, type,
                             static_cast<uint64_t>(rank))),
                describe(type, count, "all_to_all"));
      }
    }
  }
  world.barrier();
});

/// The forms with one tensor for all ranks.
const RankTasks whole_tensors("whole_tensors", [](const ProcessGroup& world) {
  const int size = world.size();
  const int rank = world.rank();
  for (const auto type : all_types()) {
    for (const int64_t count : kCounts) {
      const at::Tensor own = data_of(rank, count, type);
      Tensors per_rank, to_ranks, from_ranks;
      for (int r = 0; r < size; ++r) {
        per_rank.push_back(data_of(r, count, type));
        // Rank q sends rank r q + r elements more.
        to_ranks.push_back(
            data_of(rank, count + rank + r, type, static_cast<uint64_t>(r)));
        from_ranks.push_back(
            data_of(r, count + rank + r, type, static_cast<uint64_t>(rank)));
      }
      const at::Tensor whole = torch::zeros({size, count}, type);
      world.all_gather_into_tensor(whole, own);
      require(same(whole, torch::stack(per_rank)),
              describe(type, count, "all_gather_into_tensor"));
      const at::Tensor wide = torch::zeros({count * size, 2}, type);
      world.all_gather_into_tensor(wide.select(1, 1), own);
      require(same(wide.select(1, 1).clone(torch::MemoryFormat::Contiguous),
                   torch::cat(per_rank)),
              describe(type, count, "all_gather_into_tensor with gaps"));

      const at::Tensor sum = torch::zeros({count}, type);
      world.reduce_scatter_tensor(sum, own.repeat({size}));
      require(same(sum, reduced(Op::SUM, size, count, type)),
              describe(type, count, "reduce_scatter_tensor"));

      std::vector<int64_t> output_splits, input_splits;
      for (int r = 0; r < size; ++r) {
        output_splits.push_back(count + rank + r);
        input_splits.push_back(count + rank + r);
      }
      const at::Tensor output = torch::zeros_like(torch::cat(from_ranks));
      world.all_to_all_single(output, torch::cat(to_ranks), output_splits,
                              input_splits);
      require(same(output, torch::cat(from_ranks)),
              describe(type, count, "all_to_all_single"));
      const at::Tensor even = torch::zeros({count * size}, type);
      world.all_to_all_single(even, own.repeat({size}));
      require(same(even, torch::cat(per_rank)),
              describe(type, count, "all_to_all_single without splits"));

      for (int root = 0; root < size; root += 3) {
        Tensors outputs;
        for (int r = 0; r < (rank == root ? size : 0); ++r) {
          outputs.push_back(torch::zeros({count}, type));
        }
        world.gather(outputs, own, root);
        for (size_t r = 0; r < outputs.size(); ++r) {
          require(same(outputs[r], per_rank[r]),
                  describe(type, count, "gather into tensors"));
        }
      }
    }
  }
});

const RankTasks strided("strided", [](const ProcessGroup& world) {
  const auto view = [&](int rank) {
    return data_of(rank, 6 * 50, torch::kFloat32).view({6, 50}).t();
  };
  at::Tensor sum = view(world.rank()).clone().t().contiguous().t();
  require(!sum.is_contiguous(), "the test's tensor has gaps");
  world.all_reduce(sum);
  require(
      same(sum.t(),
           reduced(Op::SUM, world.size(), 300, torch::kFloat32).view({6, 50})),
      "all_reduce of a transposed tensor");
  at::Tensor whole = torch::zeros({10, 10});
  at::Tensor column = whole.select(1, 3);
  column.fill_(world.rank() + 1.0);
  world.broadcast(column, 0);
  require(whole.sum().item<double>() == 10 && column.sum().item<double>() == 10,
          "broadcast of a column");
});

/// A message around the ring of ranks: from each to the next.
void pass_on(const ProcessGroup& world, const at::Tensor& own,
             at::Tensor& received) {
  const int next = (world.rank() + 1) % world.size();
  const int last = (world.rank() + world.size() - 1) % world.size();
  Tensors sent{own}, got{received};
  const auto sending = world.backend()->send(sent, next, 0);
  const auto receiving = world.backend()->recv(got, last, 0);
  receiving->wait();
  sending->wait();
  require(sending->isSuccess() && receiving->isCompleted(), "send and recv");
}

template <typename Error, typename Act>
void require_throw(const Act& act, const char* what) {
  bool has_thrown = false;
  try {
    act();
  } catch (const Error&) {
    has_thrown = true;
  }
  require(has_thrown, what);
}

const RankTasks send_recv("send_recv", [](const ProcessGroup& world) {
  const int size = world.size();
  const int rank = world.rank();
  at::Tensor none = torch::zeros({1});
  require_throw<InvalidArgument>([&] { world.send(none, rank); },
                                 "send to self");
  if (size == 1) return;
  require_throw<InvalidArgument>([&] { world.recv(none, size); }, "no rank");
  require_throw<InvalidArgument>(
      [&] { world.send(none, (rank + 1) % size, -1); }, "a negative tag");
  const int last = (rank + size - 1) % size;
  for (const auto type : all_types()) {
    for (const int64_t count : kCounts) {
      at::Tensor received = torch::zeros({count}, type);
      pass_on(world, data_of(rank, count, type), received);
      require(same(received, data_of(last, count, type)),
              describe(type, count, "send and recv"));
    }
  }
  constexpr int64_t kLarge = (8 << 20) / 4;
  at::Tensor large = torch::zeros({kLarge});
  pass_on(world, data_of(rank, kLarge, torch::kFloat32), large);
  require(same(large, data_of(last, kLarge, torch::kFloat32)), "8 MiB");

  at::Tensor whole = torch::zeros({6, 50});
  at::Tensor columns = whole.t();
  pass_on(world, data_of(rank, 300, torch::kFloat32).view({6, 50}).t(),
          columns);
  require(same(whole, data_of(last, 300, torch::kFloat32).view({6, 50})),
          "send and recv of a transposed tensor");

  // Received in reverse order, during a collective.
  const auto backend_of_group = world.backend();
  auto& backend = *backend_of_group;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int tag = 0; tag < 5; ++tag) {
    Tensors sent{torch::full({1000}, static_cast<double>(10 * rank + tag))};
    works.push_back(backend.send(sent, (rank + 1) % size, tag));
  }
  at::Tensor sum = torch::ones({1000});
  world.all_reduce(sum);
  require(sum[0].item<double>() == size, "an all_reduce beside messages");
  for (int tag = 4; tag >= 0; --tag) {
    at::Tensor received = torch::zeros({1000});
    world.recv(received, last, tag);
    require(received.eq(10 * last + tag).all().item<bool>(), "reversed tags");
  }
  for (const auto& work : works) work->wait();
  world.barrier();

  if (rank != 0) {
    world.send(torch::full({3}, static_cast<double>(rank)), 0, 7);
  } else {
    std::set<int> senders;
    for (int i = 1; i < size; ++i) {
      at::Tensor received = torch::zeros({3});
      const int sender = world.recv_any(received, 7);
      require(received.eq(sender).all().item<bool>(), "the source of any");
      senders.insert(sender);
    }
    require(static_cast<int>(senders.size()) == size - 1, "any source");
  }
  world.barrier();
});

const RankTasks c10d_forms("c10d_forms", [](const ProcessGroup& world) {
  if (world.size() == 1) return;
  const auto backend_of_group = world.backend();
  const auto& backend = *backend_of_group;
  auto& calls = const_cast<c10d::Backend&>(backend);
  const int size = world.size();
  const int rank = world.rank();
  const auto float32 = torch::kFloat32;

  // Several at once, in order, with futures.
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensors> lists;
  for (uint64_t i = 0; i < 20; ++i) {
    lists.push_back(
        {data_of(rank, 1000 + static_cast<int64_t>(i) * 5000, float32, i)});
  }
  for (auto& list : lists) works.push_back(calls.allreduce(list, {}));
  for (uint64_t i = 0; i < works.size(); ++i) {
    const auto future = works[i]->getFuture();
    require(works[i]->wait() && works[i]->isSuccess(), "an async all_reduce");
    future->wait();
    const at::Tensor value = future->value().toTensorVector().at(0);
    require(same(value, reduced(Op::SUM, size, value.numel(), float32, i)),
            "an async all_reduce's future");
  }

  Tensors several{data_of(rank, 10, float32), data_of(rank, 7, float32, 1)};
  calls.allreduce_coalesced(several, {})->wait();
  require(same(several[0], reduced(Op::SUM, size, 10, float32)) &&
              same(several[1], reduced(Op::SUM, size, 7, float32, 1)),
          "allreduce_coalesced");

  at::Tensor own = data_of(rank, 12, float32);
  at::Tensor all = torch::zeros({size * 12});
  calls._allgather_base(all, own, {})->wait();
  at::Tensor expected;
  {
    Tensors parts;
    for (int r = 0; r < size; ++r) parts.push_back(data_of(r, 12, float32));
    expected = torch::cat(parts);
  }
  require(same(all, expected), "_allgather_base");

  Tensors outputs{torch::zeros({size * 12}), torch::zeros({size * 12})};
  Tensors inputs{own, own * 2};
  calls.allgather_into_tensor_coalesced(outputs, inputs, {})->wait();
  require(same(outputs[0], expected) && same(outputs[1], expected * 2),
          "allgather_into_tensor_coalesced");

  std::vector<Tensors> output_lists(static_cast<size_t>(size));
  for (auto& list : output_lists)
    list = {torch::zeros({12}), torch::zeros({12})};
  calls.allgather_coalesced(output_lists, inputs, {})->wait();
  for (int r = 0; r < size; ++r) {
    require(same(output_lists[static_cast<size_t>(r)][1],
                 data_of(r, 12, float32) * 2),
            "allgather_coalesced");
  }

  at::Tensor many = data_of(rank, 12 * size, float32);
  at::Tensor mine = torch::zeros({12});
  calls._reduce_scatter_base(mine, many, {})->wait();
  const at::Tensor part =
      reduced(Op::SUM, size, 12 * size, float32).narrow(0, rank * 12, 12);
  require(same(mine, part), "_reduce_scatter_base");
  Tensors results{torch::zeros({12})}, sources{many};
  calls.reduce_scatter_tensor_coalesced(results, sources, {})->wait();
  require(same(results[0], part), "reduce_scatter_tensor_coalesced");

  std::vector<int64_t> in_splits, out_splits;
  int64_t in_rows = 0, out_rows = 0;
  for (int r = 0; r < size; ++r) {
    in_splits.push_back(r + 1);
    out_splits.push_back(rank + 1);
    in_rows += r + 1;
    out_rows += rank + 1;
  }
  at::Tensor in = torch::full({in_rows, 3}, static_cast<double>(rank));
  at::Tensor out = torch::zeros({out_rows, 3});
  calls.alltoall_base(out, in, out_splits, in_splits, {})->wait();
  for (int r = 0; r < size; ++r) {
    require(out.narrow(0, r * (rank + 1), rank + 1).eq(r).all().item<bool>(),
            "alltoall_base with splits");
  }
});

const RankTasks groups("groups", [](const ProcessGroup& world) {
  std::vector<int> even, all_reversed;
  for (int rank = 0; rank < world.size(); rank += 2) even.push_back(rank);
  for (int rank = world.size(); rank-- > 0;) all_reversed.push_back(rank);
  const auto evens = world.new_group(even);
  require(evens.has_value() == (world.rank() % 2 == 0), "members");
  const auto reversed = world.new_group(all_reversed);
  require(reversed && reversed->rank() == world.size() - 1 - world.rank(),
          "the order of a group is that of its list");
  at::Tensor count = torch::ones({3});
  if (evens) {
    evens->all_reduce(count);
    require(count[0].item<double>() == static_cast<double>(even.size()),
            "the sum over a group");
  }
  at::Tensor first = torch::full({1}, static_cast<double>(world.rank()));
  reversed->broadcast(first, 0);
  require(first.item<double>() == world.size() - 1, "a group's rank 0");
  const auto texts =
      world.all_gather_text("I am " + std::to_string(world.rank()));
  require(texts.back() == "I am " + std::to_string(world.size() - 1), "texts");
});

const RankTasks conformance("conformance", [](const ProcessGroup& world) {
  for (const char* name :
       {"all_reduce",     "reductions",    "moves",
        "whole_tensors",  "strided",       "send_recv",
        "c10d_forms",     "groups",        "callbacks",
        "refusals",       "coalesced",     "sparse",
        "wrap",           "c10d_reducer",  "c10d_debug_detail",
        "async_bits",     "async_order",   "async_futures",
        "async_messages", "async_refusals"}) {
    RankTasks::get(name)(world);
  }
});

}  // namespace
}  // namespace lockstep
