// Collectives on tensors of the simulated accelerator: over a backend for
// devices, and over the host. The work that makes the tensors still runs when
// they are passed, and results are read at once.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace collectives_test {
namespace {

using std::chrono::milliseconds;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kCount = 1000;  // elements of a rank's tensor

c10::Device device_of(int rank) {
  return {kSim, static_cast<c10::DeviceIndex>(rank)};
}

/// Runs `task` on ranks, rank r on sim:r. Returns the error of the first rank
/// that threw, or "".
std::string error_of_ranks(int ranks, const std::string& backend,
                           const std::function<void(ProcessGroup)>& task,
                           milliseconds timeout = milliseconds(30'000)) {
  ProcessGroupOptions options;
  options.backend(backend).device_type(kSim).timeout(timeout);
  // The check of the links takes seconds, which count as part of a timeout.
  options.bad_links(BadLinks::kIgnore);
  try {
    spawn(
        ranks,
        [&](const ProcessGroup& world) {
          const c10::DeviceGuard guard(device_of(world.rank()));
          task(world);
        },
        options);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Keeps this thread's current stream busy.
void keep_busy() {
  thread_of(current_stream()).enqueue([] {
    std::this_thread::sleep_for(milliseconds(3));
  });
}

/// Returns a tensor on the current device that gets its values after work of
/// the current stream.
Tensor late(const Tensor& values) {
  Tensor tensor = values.to(
      c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device())));
  keep_busy();
  return tensor + 0;
}

/// Writes to the memory that was freed last, if it has the size of a tensor of
/// a rank.
void use_freed_memory() {
  torch::full(
      {kCount}, -7.0,
      c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device())));
}

/// Values of a rank. Their sums are exact in any order.
Tensor values_of(int rank, int64_t count = kCount) {
  return torch::arange(count, torch::kFloat) * (rank + 1) + rank;
}

Tensors values_of_all(int ranks) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_of(rank));
  return all;
}

void expect_equal(const char* call, const Tensor& got, const Tensor& expected) {
  TORCH_CHECK(torch::equal(got.cpu(), expected), call, ": got ",
              got.cpu().flatten().narrow(0, 0, 8), ", expected ",
              expected.flatten().narrow(0, 0, 8));
}

void expect_all_equal(const char* call, const Tensors& got,
                      const Tensors& expected) {
  TORCH_CHECK(got.size() == expected.size(), call);
  for (size_t i = 0; i < got.size(); ++i) {
    expect_equal(call, got[i], expected[i]);
  }
}

Tensors empty_on_device(int count) {
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(torch::empty(
        {kCount},
        c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device()))));
  }
  return tensors;
}

Tensors late_of_all(int ranks, int rank) {
  Tensors parts;
  for (int to = 0; to < ranks; ++to) {
    parts.push_back(late(values_of(rank) * (to + 1)));
  }
  return parts;
}

/// Calls every collective of `world`, and checks what it gives.
void call_all(const ProcessGroup& world, bool is_async) {
  const int rank = world.rank();
  const int ranks = world.size();
  const Tensors all = values_of_all(ranks);
  const Tensor sum = torch::stack(all).sum(0);
  const auto finish = [&](const Work& work) {
    use_freed_memory();
    work.wait();
  };
  {
    const Tensor tensor = late(values_of(rank));
    finish(world.all_reduce(tensor, ReduceOp::SUM, is_async));
    expect_equal("all_reduce", tensor, sum);
  }
  {
    const Tensor tensor = late(values_of(rank));
    finish(world.all_reduce(tensor, ReduceOp::MAX, is_async));
    expect_equal("all_reduce of MAX", tensor, all.back());
  }
  {
    const Tensor tensor = late(values_of(rank));
    finish(world.reduce(tensor, ranks - 1, ReduceOp::SUM, is_async));
    if (rank == ranks - 1) expect_equal("reduce", tensor, sum);
  }
  {
    const Tensor tensor = late(values_of(rank));
    finish(world.broadcast(tensor, 1, is_async));
    expect_equal("broadcast", tensor, all[1]);
  }
  {
    const Work work = world.all_gather(late(values_of(rank)), is_async);
    finish(work);
    expect_all_equal("all_gather", work.result(), all);
  }
  {
    const Tensors outputs = empty_on_device(ranks);
    finish(world.all_gather(outputs, late(values_of(rank)), is_async));
    expect_all_equal("all_gather into a list", outputs, all);
  }
  {
    const Tensor output = torch::cat(empty_on_device(ranks));
    finish(
        world.all_gather_into_tensor(output, late(values_of(rank)), is_async));
    expect_equal("all_gather_into_tensor", output, torch::cat(all));
  }
  {
    const Work work = world.gather(late(values_of(rank)), 1, is_async);
    finish(work);
    expect_all_equal("gather", work.result(), rank == 1 ? all : Tensors());
  }
  {
    const Tensor output = empty_on_device(1)[0];
    finish(world.scatter(output, rank == 1 ? late_of_all(ranks, 1) : Tensors(),
                         1, is_async));
    expect_equal("scatter", output, values_of(1) * (rank + 1));
  }
  {
    const Tensor output = empty_on_device(1)[0];
    finish(world.reduce_scatter(output, late_of_all(ranks, rank), ReduceOp::SUM,
                                is_async));
    expect_equal("reduce_scatter", output, sum * (rank + 1));
  }
  {
    const Tensor output = empty_on_device(1)[0];
    finish(world.reduce_scatter_tensor(
        output, torch::cat(late_of_all(ranks, rank)), ReduceOp::SUM, is_async));
    expect_equal("reduce_scatter_tensor", output, sum * (rank + 1));
  }
  {
    const Tensors outputs = empty_on_device(ranks);
    finish(world.all_to_all(outputs, late_of_all(ranks, rank), is_async));
    Tensors expected;
    for (const Tensor& values : all) expected.push_back(values * (rank + 1));
    expect_all_equal("all_to_all", outputs, expected);
  }
  {
    const Tensor output = torch::cat(empty_on_device(ranks));
    finish(world.all_to_all_single(output, torch::cat(late_of_all(ranks, rank)),
                                   {}, {}, is_async));
    expect_equal("all_to_all_single", output, torch::cat(all) * (rank + 1));
  }
  finish(world.barrier(is_async));
}

class CollectivesOnSim
    : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  static std::string backend() { return std::get<0>(GetParam()); }
  static bool is_async() { return std::get<1>(GetParam()); }
  static void run_on_ranks(int ranks,
                           const std::function<void(ProcessGroup)>& task) {
    EXPECT_EQ(error_of_ranks(ranks, backend(), task), "");
  }
};

INSTANTIATE_TEST_SUITE_P(
    Backends, CollectivesOnSim,
    testing::Combine(testing::Values("simccl", "shm", "tcp"), testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) +
             (std::get<1>(info.param) ? "Async" : "Sync");
    });

TEST_P(CollectivesOnSim, FollowTheWorkOfTheCallersStream) {
  for (const int ranks : {2, 4}) {
    run_on_ranks(ranks, [](const ProcessGroup& world) {
      TORCH_CHECK(world.backend_name() == backend());
      call_all(world, is_async());
    });
  }
}

TEST_P(CollectivesOnSim, FollowTheWorkOfASideStream) {
  run_on_ranks(3, [](const ProcessGroup& world) {
    const c10::StreamGuard guard(new_stream(world.rank()));
    call_all(world, is_async());
  });
}

TEST_P(CollectivesOnSim, RunInTheOrderOfTheirCalls) {
  run_on_ranks(3, [](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    std::vector<Work> works;
    for (int root = 0; root < 3; ++root) {
      works.push_back(world.all_reduce(tensor, ReduceOp::SUM, is_async()));
      works.push_back(world.broadcast(tensor, root, is_async()));
    }
    for (const Work& work : works) work.wait();
    const Tensor sum = torch::stack(values_of_all(3)).sum(0);
    expect_equal("six calls", tensor, sum * 9);
  });
}

TEST_P(CollectivesOnSim, TakeTensorsOfTheHostToo) {
  run_on_ranks(2, [](const ProcessGroup& world) {
    const Tensor tensor = values_of(world.rank());
    world.all_reduce(tensor, ReduceOp::SUM, is_async()).wait();
    expect_equal("all_reduce on the host", tensor,
                 torch::stack(values_of_all(2)).sum(0));
  });
}

TEST_P(CollectivesOnSim, GiveTheResultToACallback) {
  run_on_ranks(2, [](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    const auto future =
        world.all_reduce(tensor, ReduceOp::SUM, is_async()).future();
    const auto doubled = future->then(
        [](c10::ivalue::Future& done) {
          return done.value().toTensorVector().at(0) * 2;
        },
        c10::TensorType::get());
    doubled->wait();
    expect_equal("a callback", doubled->value().toTensor(),
                 torch::stack(values_of_all(2)).sum(0) * 2);
  });
}

class MessagesOnSim : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, MessagesOnSim,
                         testing::Values("simccl", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(MessagesOnSim, FollowTheWorkOfTheCallersStream) {
  const auto task = [](const ProcessGroup& world) {
    for (int i = 1; i <= 3; ++i) {
      if (world.rank() == 0) {
        const Work work = world.isend(late(values_of(0) * i), 1);
        use_freed_memory();
        work.wait();
        world.send(late(values_of(0) * i), 1, /*tag=*/5);
      } else {
        const Tensor tensor = late(values_of(7));
        world.irecv(tensor, 0).wait();
        expect_equal("irecv", tensor, values_of(0) * i);
        world.recv(tensor, 0, /*tag=*/5);
        expect_equal("recv", tensor, values_of(0) * i);
      }
    }
    world.barrier();
  };
  EXPECT_EQ(error_of_ranks(2, GetParam(), task), "");
}

class FailuresOnSim : public testing::TestWithParam<const char*> {};

// Tier of Backends/FailuresOnSim: full. Ranks stall until the time limit.
INSTANTIATE_TEST_SUITE_P(Backends, FailuresOnSim,
                         testing::Values("simccl", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

/// Calls `world` until an error appears. A call over a backend for devices may
/// return before it fails.
void call_until_error(const ProcessGroup& world, const Tensor& tensor) {
  for (;;) {
    world.all_reduce(tensor);
    world.barrier();
  }
}

TEST_P(FailuresOnSim, AnotherCallOfARankIsAnErrorOnAllRanks) {
  std::array<std::string, 3> errors;
  const auto task = [&](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    world.all_reduce(tensor);
    try {
      if (world.rank() == 1) {
        world.broadcast(tensor, 0);
      } else {
        world.all_reduce(tensor);
      }
      call_until_error(world, tensor);
    } catch (const CommError& error) {
      errors.at(static_cast<size_t>(world.rank())) = error.what();
      throw;
    }
  };
  EXPECT_NE(error_of_ranks(3, GetParam(), task), "");
  // A rank may only see that another one has given up.
  const std::string call =
      GetParam() == std::string("simccl") ? "BROADCAST" : "broadcast";
  bool is_named = false;
  for (const std::string& error : errors) {
    EXPECT_NE(error, "");
    is_named = is_named || error.find(call) != std::string::npos;
  }
  EXPECT_TRUE(is_named) << errors[0] << "\n" << errors[1] << "\n" << errors[2];
}

TEST_P(FailuresOnSim, ARankThatStallsIsAnErrorAtTheTimeout) {
  std::atomic<int> errors = 0;
  const auto task = [&](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    world.all_reduce(tensor);
    world.barrier();
    if (world.rank() == 2) {
      errors.wait(0);  // until the other ranks have noticed
      return;
    }
    try {
      call_until_error(world, tensor);
    } catch (const CommError&) {
      ++errors;
      errors.notify_all();
      throw;
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::string error =
      error_of_ranks(3, GetParam(), task, milliseconds(2000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  EXPECT_NE(error, "");
  EXPECT_EQ(errors, 2);
}

TEST_P(FailuresOnSim, ARankThatThrowsEndsTheWaitsOfTheOthers) {
  const auto task = [&](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    world.all_reduce(tensor);
    if (world.rank() == 1) throw std::runtime_error("rank 1 has enough");
    call_until_error(world, tensor);
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::string error =
      error_of_ranks(3, GetParam(), task, milliseconds(60'000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_NE(error.find("rank 1 has enough"), std::string::npos) << error;
}

TEST(SimcclBackend, RefusesTwoRanksOnOneDevice) {
  const std::string error =
      error_of_ranks(2, "simccl", [](const ProcessGroup& world) {
        world.all_reduce(torch::ones({4}, device_of(0)));
      });
  EXPECT_NE(error.find("use as many GPUs as ranks"), std::string::npos)
      << error;
}

TEST(SimcclBackend, IsTheBackendForItsDevicesUnlessAnotherIsAskedFor) {
  EXPECT_EQ(error_of_ranks(2, "auto",
                           [](const ProcessGroup& world) {
                             TORCH_CHECK(world.backend_name() == "simccl");
                             TORCH_CHECK(!world.sums_along_tree());
                             TORCH_CHECK(world.backend() != nullptr);
                           }),
            "");
}

/// Sums of floats depend on the order, which differs from that of the tree.
TEST(SimcclBackend, AddsInAnotherOrderThanTheTree) {
  const auto sum_over = [](const std::string& backend) {
    Tensor sum;
    EXPECT_EQ(error_of_ranks(4, backend,
                             [&](const ProcessGroup& world) {
                               const Tensor tensor =
                                   late(values_of(world.rank()).sin());
                               world.all_reduce(tensor);
                               if (world.rank() == 0) sum = tensor.cpu();
                             }),
              "");
    return sum;
  };
  EXPECT_FALSE(torch::equal(sum_over("simccl"), sum_over("shm")));
  EXPECT_TRUE(torch::equal(sum_over("tcp"), sum_over("shm")));
}

TEST(SimcclBackend, IsKeptUntilItsCallsAreDone) {
  const auto task = [](const ProcessGroup& world) {
    for (const bool is_async : {false, true}) {
      const Tensor tensor = late(values_of(world.rank()));
      {
        const auto group = world.new_group({1, 0});
        group->all_reduce(tensor, ReduceOp::SUM, is_async).wait();
      }
      expect_equal("all_reduce of a group that is gone", tensor,
                   torch::stack(values_of_all(2)).sum(0));
      world.barrier();
    }
  };
  EXPECT_EQ(error_of_ranks(2, "simccl", task), "");
}

TEST(SimcclBackend, DoesNotLetTheHostWait) {
  const auto task = [](const ProcessGroup& world) {
    const Tensor tensor = late(values_of(world.rank()));
    world.all_reduce(tensor);
    world.barrier();
    std::atomic<bool> may_run = false;
    thread_of(current_stream()).enqueue([&] { may_run.wait(false); });
    const Work work = world.all_reduce(tensor, ReduceOp::SUM, true);
    work.wait();
    TORCH_CHECK(!work.is_completed());
    may_run = true;
    may_run.notify_all();
    world.barrier();
    TORCH_CHECK(work.is_completed());
  };
  EXPECT_EQ(error_of_ranks(2, "simccl", task), "");
}

}  // namespace
}  // namespace collectives_test
}  // namespace lockstep::sim
