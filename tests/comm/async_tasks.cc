// The asynchronous forms of ProcessGroup's calls: they give the bits of the
// synchronous ones, in the order in which they were called.

#include <chrono>
#include <future>
#include <memory>

#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/torch_compat.h"
#include "tests/base/error_code_of.h"
#include "tests/comm/rank_data.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep::async_tasks {
namespace {

using Tensors = std::vector<at::Tensor>;
using Op = ReduceOp::RedOpType;

constexpr std::array<int64_t, 4> kCounts{0, 1, 1001, 70'001};
constexpr auto kDeadline = std::chrono::seconds(60);

at::Tensor filled(double value, int64_t count = 100) {
  return torch::full({count}, value, torch::kFloat64);
}

void require_same(const Tensors& got, const Tensors& expected,
                  const std::string& what) {
  require(got.size() == expected.size(), what + ": tensors");
  for (size_t i = 0; i < got.size(); ++i) {
    require(same(got[i], expected[i]), what);
  }
}

/// Returns this rank's data for each other rank.
Tensors parts_of(const ProcessGroup& world, int64_t count,
                 at::ScalarType type) {
  Tensors parts;
  for (int r = 0; r < world.size(); ++r) {
    parts.push_back(
        data_of(world.rank(), count, type, static_cast<uint64_t>(r)));
  }
  return parts;
}

Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros;
  for (const auto& tensor : tensors) zeros.push_back(torch::zeros_like(tensor));
  return zeros;
}

void compare_forms(const ProcessGroup& world, int64_t count,
                   at::ScalarType type) {
  const at::Tensor own = data_of(world.rank(), count, type);
  const Tensors parts = parts_of(world, count, type);
  const std::string of = std::string(" of ") + c10::toString(type);
  const int root = world.size() - 1;

  // All are under way at once.
  const at::Tensor sum = own.clone(), reduced = own.clone(), sent = own.clone();
  const at::Tensor scattered = torch::zeros_like(own);
  const at::Tensor part_sum = torch::zeros_like(own);
  const Tensors exchanged = zeros_like(parts);
  const Work all_reduce =
      world.all_reduce(sum, ReduceOp::SUM, /*async_op=*/true);
  const Work reduce =
      world.reduce(reduced, root, ReduceOp::SUM, /*async_op=*/true);
  const Work broadcast = world.broadcast(sent, root, /*async_op=*/true);
  const Work all_gather = world.all_gather(own, /*async_op=*/true);
  const Work gather = world.gather(own, root, /*async_op=*/true);
  const Work scatter = world.scatter(scattered, parts, root, /*async_op=*/true);
  const Work reduce_scatter =
      world.reduce_scatter(part_sum, parts, ReduceOp::SUM, /*async_op=*/true);
  const Work all_to_all = world.all_to_all(exchanged, parts, /*async_op=*/true);
  const Work barrier = world.barrier(/*async_op=*/true);
  for (const Work& work : {barrier, all_to_all, reduce_scatter, scatter, gather,
                           all_gather, broadcast, reduce, all_reduce}) {
    work.wait();
    require(work.is_completed(), "a Work is completed after wait()");
  }

  at::Tensor expected = own.clone();
  world.all_reduce(expected);
  require_same(all_reduce.result(), {expected}, "all_reduce_async" + of);
  require(same(sum, expected), "all_reduce_async is in place");
  expected = own.clone();
  world.reduce(expected, root);
  require_same(reduce.result(), {expected}, "reduce_async" + of);
  expected = own.clone();
  world.broadcast(expected, root);
  require_same(broadcast.result(), {expected}, "broadcast_async" + of);
  require_same(all_gather.result(), world.all_gather(own).result(),
               "all_gather_async" + of);
  require_same(gather.result(), world.gather(own, root).result(),
               "gather_async" + of);
  expected = torch::zeros_like(own);
  world.scatter(expected, parts, root);
  require_same(scatter.result(), {expected}, "scatter_async" + of);
  world.reduce_scatter(expected, parts);
  require_same(reduce_scatter.result(), {expected},
               "reduce_scatter_async" + of);
  Tensors outputs = zeros_like(parts);
  world.all_to_all(outputs, parts);
  require_same(all_to_all.result(), outputs, "all_to_all_async" + of);
  require(barrier.result().empty(), "barrier_async");
}

const RankTasks async_bits("async_bits", [](const ProcessGroup& world) {
  for (const auto type : all_types()) {
    for (const int64_t count : kCounts) compare_forms(world, count, type);
  }
});

const RankTasks async_order("async_order", [](const ProcessGroup& world) {
  const double size = world.size();
  // Each call reads what the one before it wrote.
  at::Tensor tensor = filled(1);
  double expected = 1;
  std::vector<Work> works;
  for (int i = 0; i < 10; ++i) {
    works.push_back(world.all_reduce(tensor, ReduceOp::SUM, /*async_op=*/true));
    expected *= size;
  }
  // A synchronous call waits for its turn.
  world.all_reduce(tensor);
  expected *= size;
  require(torch::equal(tensor, filled(expected)), "a sum of sums");
  for (const Work& work : works) {
    require(work.is_completed(), "what is before a synchronous call is done");
  }
  // c10d's calls are in the same queue.
  if (world.size() > 1) {
    at::Tensor other = filled(1);
    const Work first =
        world.all_reduce(other, ReduceOp::SUM, /*async_op=*/true);
    Tensors list{other};
    const auto second = world.backend()->allreduce(list, {});
    world.all_reduce(other);
    require(second->isCompleted(), "one queue");
    require(torch::equal(other, filled(size * size * size)),
            "a sum through ProcessGroup, c10d and ProcessGroup");
  }
  // Nobody waits for these: they are done all the same.
  for (int i = 0; i < 10; ++i)
    world.all_reduce(filled(i), ReduceOp::SUM, /*async_op=*/true);
  world.barrier();
});

const RankTasks async_futures("async_futures", [](const ProcessGroup& world) {
  const int size = world.size();
  const Work work = world.all_reduce(filled(world.rank() + 1), ReduceOp::SUM,
                                     /*async_op=*/true);
  const auto twice = work.future()->then(
      [](c10::ivalue::Future& future) {
        return c10::IValue(future.constValue().toTensorVector().at(0) * 2);
      },
      c10::TensorType::get());
  const auto nested = work.future()->then(
      [&](c10::ivalue::Future&) {
        // ProcessGroup's own calls may be made, and waited for, in a callback.
        at::Tensor one = filled(1);
        world.all_reduce(one);
        const Work next =
            world.all_reduce(one, ReduceOp::SUM, /*async_op=*/true);
        next.wait();
        return c10::IValue(one);
      },
      c10::TensorType::get());
  at::Tensor behind = filled(3);
  world.all_reduce(behind);
  for (const auto& future : {twice, nested}) {
    const auto done = std::make_shared<std::promise<void>>();
    future->addCallback([done](c10::ivalue::Future&) { done->set_value(); });
    require(done->get_future().wait_for(kDeadline) == std::future_status::ready,
            "the callback of a future is called");
  }
  require(torch::equal(twice->value().toTensor(), filled(size * (size + 1))),
          "a callback gets the result");
  require(torch::equal(nested->value().toTensor(), filled(size * size)),
          "calls of a callback");
  require(torch::equal(behind, filled(3 * size)), "what is behind a callback");
  const Work barrier = world.barrier(/*async_op=*/true);
  barrier.wait();
  barrier.future()->wait();
  require(barrier.future()->value().toTensorVector().empty(),
          "the future of a barrier");
  require_same(work.future()->value().toTensorVector(), work.result(),
               "the future of a Work that is done");
});

const RankTasks async_messages("async_messages", [](const ProcessGroup& world) {
  const int size = world.size();
  const int rank = world.rank();
  if (size == 1) {
    require(error_code_of([&] { world.isend(filled(1), 0); }) ==
                ErrorCode::kBadRank,
            "a world of one has nobody to send to");
    return;
  }
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  constexpr int64_t kCount = 1 << 18;
  std::vector<Work> works;
  Tensors received;
  // All send first, which send() could not.
  for (int tag = 0; tag < 4; ++tag) {
    works.push_back(world.isend(filled(10 * rank + tag, kCount), next, tag));
  }
  at::Tensor beside = filled(1);
  world.all_reduce(beside);
  for (int tag = 3; tag >= 0; --tag) {
    received.push_back(filled(-1, kCount));
    works.push_back(world.irecv(received.back(), last, tag));
  }
  for (const Work& work : works) work.wait();
  for (int i = 0; i < 4; ++i) {
    require(torch::equal(received[static_cast<size_t>(i)],
                         filled(10 * last + 3 - i, kCount)),
            "isend and irecv");
  }
  const Work sending = world.isend(filled(rank), next, 9);
  const at::Tensor any = filled(-1);
  const Work receiving = world.irecv_any(any, 9);
  receiving.wait();
  sending.wait();
  require(receiving.source_rank() == last && torch::equal(any, filled(last)),
          "irecv_any");
  require(error_code_of([&] { receiving.future(); }) == ErrorCode::kMisuse,
          "a message has no future");
  require(error_code_of([&] {
            world.barrier(/*async_op=*/true).source_rank();
          }) == ErrorCode::kMisuse,
          "a collective has no source rank");
  world.barrier();
});

const RankTasks async_refusals("async_refusals", [](const ProcessGroup& world) {
  const at::Tensor tensor = filled(1);
  const auto is_refused = [&](const auto& act) {
    try {
      act();
    } catch (const InvalidArgument&) {
      return true;
    }
    return false;
  };
  // The call itself throws, not wait(), and only on one rank.
  if (world.rank() == 0) {
    require(is_refused([&] { world.broadcast(tensor, -1, /*async_op=*/true); }),
            "a root");
    require(is_refused([&] {
              world.reduce(tensor, world.size(), ReduceOp::SUM,
                           /*async_op=*/true);
            }),
            "a root of reduce");
    require(
        is_refused([&] { world.scatter(tensor, {}, 0, /*async_op=*/true); }),
        "no part");
    require(is_refused([&] {
              world.all_reduce(at::Tensor(), ReduceOp::SUM, /*async_op=*/true);
            }),
            "an undefined tensor");
    require(is_refused([&] { world.all_to_all({}, {}, /*async_op=*/true); }),
            "no tensors");
  }
  at::Tensor after = filled(1);
  world.all_reduce(after);
  require(torch::equal(after, filled(world.size())), "a sum after refusals");
  require(torch::equal(tensor, filled(1)), "a refused tensor is left alone");
});

/// A copy of `values` with gaps in memory, made in inference mode.
at::Tensor inference_copy(const at::Tensor& values) {
  const c10::InferenceMode mode;
  at::Tensor wide = torch::zeros({values.numel(), 2}, values.options());
  wide.select(1, 0).copy_(values);
  return wide.select(1, 0);
}

// The queue's thread writes the results, and is not in inference mode.
const RankTasks async_inference(
    "async_inference", [](const ProcessGroup& world) {
      const int size = world.size();
      const auto own = [&](int r) { return data_of(r, 60, torch::kFloat32); };
      const auto outputs = [&] {
        Tensors tensors;
        for (int r = 0; r < size; ++r) {
          tensors.push_back(inference_copy(torch::zeros({60})));
        }
        return tensors;
      };
      const at::Tensor input = inference_copy(own(world.rank()));
      const Tensors inputs(static_cast<size_t>(size), input);

      // Each call is made again with usual tensors.
      const auto sum = inference_copy(own(world.rank()));
      const auto scaled = inference_copy(own(world.rank()));
      const auto root_data = inference_copy(own(world.rank()));
      const auto reduced = inference_copy(own(world.rank()));
      const auto scattered = inference_copy(torch::zeros({60}));
      const auto reduce_scattered = inference_copy(torch::zeros({60}));
      const Tensors gathered = outputs(), exchanged = outputs();
      const Tensors at_root = world.rank() == 0 ? outputs() : Tensors();
      const bool is_root = world.rank() == 0;
      const std::vector<Work> works{
          world.all_reduce(sum, Op::SUM, true),
          world.all_reduce(scaled, make_pre_mul_sum(0.5), true),
          world.broadcast(root_data, 0, true),
          world.reduce(reduced, 0, Op::SUM, true),
          world.all_gather(gathered, input, true),
          world.gather(at_root, input, 0, true),
          world.scatter(scattered, is_root ? inputs : Tensors(), 0, true),
          world.reduce_scatter(reduce_scattered, inputs, Op::SUM, true),
          world.all_to_all(exchanged, inputs, true)};
      for (const Work& work : works) work.wait();

      at::Tensor expected = own(world.rank());
      world.all_reduce(expected);
      require(same(sum, expected), "all_reduce");
      require(same(reduce_scattered, expected), "reduce_scatter");
      require(!is_root || same(reduced, expected), "reduce");
      at::Tensor half = own(world.rank());
      world.all_reduce(half, make_pre_mul_sum(0.5));
      require(same(scaled, half), "all_reduce with a factor");
      require(same(root_data, own(0)), "broadcast");
      require(same(scattered, own(0)), "scatter");
      for (size_t r = 0; r < gathered.size(); ++r) {
        const at::Tensor rank_data = own(static_cast<int>(r));
        require(same(gathered[r], rank_data), "all_gather");
        require(same(exchanged[r], rank_data), "all_to_all");
        require(!is_root || same(at_root[r], rank_data), "gather");
      }
      if (size == 1) return;
      const int next = (world.rank() + 1) % size;
      const int last = (world.rank() + size - 1) % size;
      const auto received = inference_copy(torch::zeros({60}));
      const Work sending = world.isend(input, next);
      world.irecv(received, last).wait();
      sending.wait();
      require(same(received, own(last)), "irecv");
      at::Tensor sparse;
      {
        const c10::InferenceMode mode;
        sparse = own(world.rank()).to_sparse();
      }
      world.all_reduce(sparse, Op::SUM, true).wait();
      require(same(sparse.to_dense(), expected),
              "all_reduce of sparse tensors");
    });

}  // namespace
}  // namespace lockstep::async_tasks
