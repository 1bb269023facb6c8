// A rank that fails on the simulated accelerator ends the other ranks, with an
// error on each of them.
// Tier: full. Each rank is a process.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/accelerator/ddp_ranks.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep::sim {
namespace ddp_failures_test {
namespace {

using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using torch::Tensor;

constexpr int kRanks = 3;

/// The end of all ranks.
struct End {
  int failed_ranks = 0;
  std::string error;  // of the rank that caused it
  double seconds = 0;
};

/// Called in each step of a rank, in its backward.
using InBackward = std::function<void(int rank, int64_t step)>;
/// Called before each step of a rank.
using BeforeStep = std::function<void(int rank, int64_t step)>;

/// Trains until a rank fails.
End train_until_failure(const std::string& backend, bool is_driven,
                        const BeforeStep& before_step,
                        const InBackward& in_backward) {
  std::atomic<int> failed_ranks = 0;
  const auto task = [&](const ProcessGroup& world, const torch::Device& home) {
    auto net = net_on(home);
    DistributedDataParallel<NetImpl> model(
        net, world,
        DistributedDataParallelOptions().intra_op_threads(1).verify(
            Verify::kNever));
    torch::optim::SGD sgd(net->parameters(), 0.01);
    const int rank = world.rank();
    try {
      for (int64_t step = 0;; ++step) {
        before_step(rank, step);
        const auto loss = [&, step](const Tensor& output,
                                    const Tensor& target) {
          if (output.requires_grad()) {
            output.register_hook(
                [&, step](const Tensor&) { in_backward(rank, step); });
          }
          return loss_of(output, target);
        };
        const int64_t first = (step * kRanks + rank) * 4;
        if (is_driven) {
          model->train_step(inputs(first, 4).cpu(), targets(first, 4).cpu(),
                            loss, sgd);
          continue;
        }
        sgd.zero_grad();
        loss(model->forward(inputs(first, 4).to(home)),
             targets(first, 4).to(home))
            .backward();
        sgd.step();
      }
    } catch (const std::exception&) {
      ++failed_ranks;
      throw;
    }
    return std::vector<Tensor>();
  };
  End end;
  const auto begin = std::chrono::steady_clock::now();
  try {
    results_on_sim(kRanks, backend, task);
  } catch (const std::exception& error) {
    end.error = error.what();
  }
  end.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  end.failed_ranks = failed_ranks;
  return end;
}

class DdpFailuresOnSim
    : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  void TearDown() override { set_faults({}); }
  static std::string backend() { return std::get<0>(GetParam()); }
  static bool is_driven() { return std::get<1>(GetParam()); }

  static void expect_end_of_all(const End& end, const std::string& cause) {
    EXPECT_EQ(end.failed_ranks, kRanks);
    EXPECT_NE(end.error.find(cause), std::string::npos) << end.error;
    EXPECT_LT(end.seconds, 20);  // the timeout is 60 s
  }
};

INSTANTIATE_TEST_SUITE_P(
    Backends, DdpFailuresOnSim,
    testing::Combine(testing::Values("simccl", "shm", "tcp"), testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) +
             (std::get<1>(info.param) ? "Step" : "Loop");
    });

TEST_P(DdpFailuresOnSim, ARankThatThrowsBetweenTwoStepsEndsTheOthers) {
  const End end = train_until_failure(
      backend(), is_driven(),
      [](int rank, int64_t step) {
        if (rank == 1 && step == 2) throw std::runtime_error("no more data");
      },
      [](int, int64_t) {});
  expect_end_of_all(end, "no more data");
}

TEST_P(DdpFailuresOnSim, ARankThatThrowsInABackwardEndsTheOthers) {
  const End end = train_until_failure(
      backend(), is_driven(), [](int, int64_t) {},
      [](int rank, int64_t step) {
        if (rank == 1 && step == 2) throw std::runtime_error("a bad operator");
      });
  expect_end_of_all(end, "a bad operator");
}

TEST_P(DdpFailuresOnSim, ARankWithoutMemoryEndsTheOthers) {
  const End end = train_until_failure(
      backend(), is_driven(), [](int, int64_t) {},
      [](int rank, int64_t step) {
        if (rank != 1 || step != 2) return;
        Faults faults;
        faults.failing_allocation = 1;
        set_faults(faults);
      });
  expect_end_of_all(end, "out of memory");
}

// An error of a kernel stays until the process ends.
TEST_P(DdpFailuresOnSim, AKernelThatFailsOnARankEndsTheOthers) {
  EXPECT_EXIT(
      {
        const End end = train_until_failure(
            backend(), is_driven(), [](int, int64_t) {},
            [](int rank, int64_t step) {
              if (rank != 1 || step != 2) return;
              Faults faults;
              faults.failing_kernel = 1;
              set_faults(faults);
            });
        std::fprintf(stderr, "%d ranks failed in %s: %s", end.failed_ranks,
                     end.seconds < 20 ? "time" : "vain", end.error.c_str());
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "3 ranks failed in time: .*kernel failed");
}

}  // namespace
}  // namespace ddp_failures_test
}  // namespace lockstep::sim
