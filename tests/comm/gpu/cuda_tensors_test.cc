// Tensors on a GPU: NCCL with the one rank that a GPU can have, and ranks that
// share a GPU over shm and tcp.
#include <chrono>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/types.h>

#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/foreign_backend.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/device.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep::cuda_tensors_test {
namespace {

using torch::Tensor;

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int kRanks = 3;
// More than one message of any backend.
constexpr int64_t kCount = (1 << 20) + 3;

torch::TensorOptions on_gpu() {
  return torch::dtype(torch::kFloat64).device(torch::kCUDA, 0);
}

Tensor filled(double value) { return torch::full({kCount}, value, on_gpu()); }

bool is_all(const Tensor& tensor, double value) {
  return tensor.is_cuda() && tensor.eq(value).all().item<bool>();
}

/// Work for the current stream that takes some milliseconds, after which
/// `tensor` has other values.
void add_late(Tensor& tensor, double value) {
  const Tensor large = torch::ones({4096, 4096}, torch::kCUDA);
  for (int i = 0; i < 20; ++i) torch::mm(large, large);
  tensor.add_(value);
}

class OnOneGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  }
  static void on_ranks(const std::function<void(const ProcessGroup&)>& task) {
    ProcessGroupOptions options;
    options.backend(GetParam());
    options.device_type(torch::kCUDA);
    options.timeout(kTimeout);
    spawn(
        kRanks,
        [&](const ProcessGroup& world) {
          accelerator::bind_thread(
              {c10::kCUDA, 0, 0});  // each rank has a stream
          task(world);
        },
        options);
  }
};

TEST_P(OnOneGpu, SendsTensorsOfAGpuThroughTheHost) {
  on_ranks([](const ProcessGroup& world) {
    const int rank = world.rank();
    require(!world.can_share_memory(), "memory of a GPU is not shared");
    Tensor sum = filled(0);
    add_late(sum, rank + 1);
    world.all_reduce(sum);
    require(is_all(sum, 6), "all_reduce");
    Tensor from_root = filled(rank);
    world.broadcast(from_root, 1);
    require(is_all(from_root, 1), "broadcast");
    const auto gathered = world.all_gather(filled(rank)).result();
    for (int r = 0; r < kRanks; ++r) {
      require(is_all(gathered[static_cast<size_t>(r)], r), "all_gather");
    }
    std::vector<Tensor> inputs, outputs;
    for (int r = 0; r < kRanks; ++r) {
      inputs.push_back(filled(10 * rank + r));
      outputs.push_back(filled(-1));
    }
    world.all_to_all(outputs, inputs);
    for (int r = 0; r < kRanks; ++r) {
      require(is_all(outputs[static_cast<size_t>(r)], 10 * r + rank),
              "all_to_all");
    }
    Tensor own = filled(0);
    world.reduce_scatter(own, inputs);
    require(is_all(own, 30 + 3 * rank), "reduce_scatter");
    Tensor strided = filled(rank).view({1, kCount}).expand({2, kCount});
    strided = strided.contiguous().t();
    world.all_reduce(strided, ReduceOp::MAX);
    require(is_all(strided, kRanks - 1), "all_reduce with gaps");
  });
}

TEST_P(OnOneGpu, WaitsForTheStreamOfTheRankThatBeginsACall) {
  on_ranks([](const ProcessGroup& world) {
    std::vector<Tensor> sums;
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) {
      sums.push_back(filled(0));
      add_late(sums.back(), i + world.rank());
      works.push_back(world.all_reduce(sums.back(), ReduceOp::SUM,
                                       /*async_op=*/true));
    }
    for (int i = 0; i < 4; ++i) {
      works[static_cast<size_t>(i)].wait();
      require(is_all(sums[static_cast<size_t>(i)], 3 * i + 3), "a sum");
    }
    const int next = (world.rank() + 1) % kRanks;
    const int previous = (world.rank() + kRanks - 1) % kRanks;
    Tensor out = filled(0), in = filled(-1);
    add_late(out, world.rank());
    const Work sent = world.isend(out, next);
    world.recv(in, previous);
    sent.wait();
    require(is_all(in, previous), "a message");
  });
}

TEST_P(OnOneGpu, CarriesTensorsOnTheHostToo) {
  on_ranks([](const ProcessGroup& world) {
    const Tensor on_host = torch::ones({5});
    world.all_reduce(on_host);
    require(on_host.eq(kRanks).all().item<bool>(), "all_reduce on the host");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, OnOneGpu, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

TEST(Nccl, RunsEachCollectiveOfOneRank) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "this machine has no GPU";
  accelerator::bind_thread({c10::kCUDA, 0, 0});
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->timeout = kTimeout;
  impl->direct.reset();
  impl->foreign = std::make_unique<ForeignBackend>(
      make_nccl_backend(store, 0, 1, kTimeout), "nccl", torch::kCUDA);
  const ProcessGroup nccl(impl);
  for (const bool is_async : {false, true}) {
    const c10d::ReduceOp sum(c10d::ReduceOp::SUM);
    const Tensor values = filled(2);
    nccl.all_reduce(values, sum, is_async).wait();
    nccl.reduce(values, 0, sum, is_async).wait();
    nccl.broadcast(values, 0, is_async).wait();
    EXPECT_TRUE(is_all(values, 2));
    const auto copies = [&](const char* name, auto call) {
      const Tensor output = filled(0);
      call(output).wait();
      EXPECT_TRUE(is_all(output, 2)) << name;
    };
    using Tensors = std::vector<Tensor>;
    copies("all_gather", [&](const Tensor& out) {
      return nccl.all_gather(Tensors{out}, values, is_async);
    });
    copies("all_gather_into_tensor", [&](const Tensor& out) {
      return nccl.all_gather_into_tensor(out, values, is_async);
    });
    copies("gather", [&](const Tensor& out) {
      return nccl.gather(Tensors{out}, values, 0, is_async);
    });
    copies("scatter", [&](const Tensor& out) {
      return nccl.scatter(out, Tensors{values}, 0, is_async);
    });
    copies("reduce_scatter", [&](const Tensor& out) {
      return nccl.reduce_scatter(out, Tensors{values}, sum, is_async);
    });
    copies("reduce_scatter_tensor", [&](const Tensor& out) {
      return nccl.reduce_scatter_tensor(out, values, sum, is_async);
    });
    copies("all_to_all", [&](const Tensor& out) {
      return nccl.all_to_all(Tensors{out}, Tensors{values}, is_async);
    });
    nccl.barrier(is_async).wait();
  }
}

}  // namespace
}  // namespace lockstep::cuda_tensors_test
