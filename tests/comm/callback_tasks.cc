// Operations that callbacks of futures begin, and wait for, as the hooks of
// PyTorch's DistributedDataParallel do (PowerSGD's).

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/process_group.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;

constexpr int64_t kCount = 100;
constexpr auto kDeadline = std::chrono::seconds(60);

at::Tensor filled(double value) {
  return torch::full({kCount}, value, torch::kFloat64);
}

at::Tensor first_of(const Future& future) {
  return future.constValue().toTensorVector().at(0);
}

/// The value of a future that must come before the deadline.
c10::IValue value_of(const FuturePtr& future) {
  const auto done = std::make_shared<std::promise<void>>();
  future->addCallback([done](Future&) { done->set_value(); });
  require(done->get_future().wait_for(kDeadline) == std::future_status::ready,
          "a future hangs");
  return future->value();
}

FuturePtr sum_of(c10d::Backend& backend, const at::Tensor& tensor) {
  Tensors list{tensor.clone()};
  return backend.allreduce(list, {})->getFuture();
}

/// The sum of the sum ... of `tensor`, `depth` times, each in a callback of the
/// one before, which waits for it.
at::Tensor nested_sum(c10d::Backend& backend, const at::Tensor& tensor,
                      int depth) {
  if (depth == 0) return tensor;
  const auto next = [&backend, depth](Future& future) {
    return c10::IValue(nested_sum(backend, first_of(future), depth - 1));
  };
  const auto sum = sum_of(backend, tensor)->then(next, c10::TensorType::get());
  sum->wait();
  return sum->value().toTensor();
}

double power(int base, int exponent) {
  double result = 1;
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}

/// Several sums under way, each with nested ones in its callback. All have one
/// size: in another order than on the other ranks, sums would be of other
/// operations. On the ranks for which `is_late` holds, callbacks come when the
/// operation is over.
void nest_in_several(const ProcessGroup& world, int depth, bool is_late) {
  const auto backend_of_group = world.backend();
  auto& backend = *backend_of_group;
  const int size = world.size();
  std::vector<FuturePtr> results;
  for (int i = 0; i < 8; ++i) {
    Tensors list{filled((world.rank() + 1) * (i + 1))};
    const auto work = backend.allreduce(list, {});
    if (is_late) work->wait();
    results.push_back(work->getFuture()->then(
        [&backend, depth](Future& future) {
          return c10::IValue(nested_sum(backend, first_of(future), depth));
        },
        c10::TensorType::get()));
  }
  for (int i = 0; i < 8; ++i) {
    const double expected =
        size * (size + 1) / 2.0 * (i + 1) * power(size, depth);
    require(torch::equal(value_of(results[static_cast<size_t>(i)]).toTensor(),
                         filled(expected)),
            "the sums in callbacks of sum " + std::to_string(i));
  }
}

const RankTasks callbacks("callbacks", [](const ProcessGroup& world) {
  if (world.size() == 1) return;
  const auto backend_of_group = world.backend();
  auto& backend = *backend_of_group;
  const int size = world.size();
  for (const int depth : {1, 2, 4}) {
    nest_in_several(world, depth, false);
    nest_in_several(world, depth, true);
    nest_in_several(world, depth, world.rank() % 2 == 0);
  }

  // One callback waits for operations of every kind, while another operation is
  // queued.
  Tensors list{filled(1)};
  const auto many = backend.allreduce(list, {})->getFuture()->then(
      [&](Future&) {
        at::Tensor value = filled(world.rank());
        world.broadcast(value, size - 1);
        world.all_reduce(value);
        world.barrier();
        return c10::IValue(
            value + static_cast<double>(world.all_gather_text("text").size()));
      },
      c10::TensorType::get());
  Tensors behind{filled(1)};
  backend.allreduce(behind, {})->wait();
  require(
      torch::equal(value_of(many).toTensor(), filled((size - 1) * size + size)),
      "operations of ProcessGroup in a callback");
  require(torch::equal(behind[0], filled(size)), "what is behind a callback");

  // An exception in a callback affects only its own future.
  Tensors other{filled(1)};
  const auto failing = backend.allreduce(other, {})->getFuture()->then(
      [&](Future& future) -> c10::IValue {
        nested_sum(backend, first_of(future), 2);
        throw std::runtime_error("thrown by the callback");
      },
      c10::TensorType::get());
  Tensors after{filled(2)};
  backend.allreduce(after, {})->wait();
  bool has_thrown = false;
  try {
    value_of(failing);
  } catch (const std::exception& error) {
    has_thrown = std::string(error.what()).find("thrown by the callback") !=
                 std::string::npos;
  }
  require(has_thrown, "the exception of a callback");
  require(torch::equal(after[0], filled(2 * size)), "after an exception");
});

}  // namespace
}  // namespace lockstep
