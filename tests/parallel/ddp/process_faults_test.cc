// Ranks as processes, one of which is killed or stopped in the midst of
// training: the other notices, says who it was, and ends.
// Tier: full, by case. Each rank is a process.
#include <atomic>
#include <chrono>
#include <csignal>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/rank_tasks.h"
#include "tests/parallel/ddp/ranks.h"

namespace lockstep {
namespace {

using namespace testing_ddp;  // NOLINT
using torch::Tensor;

double now_s() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Ends or stops this process, and says when.
void fail_by(int signal) {
  std::cerr << "fault at " << now_s() << " s\n" << std::flush;
  ::raise(signal);
}

/// Rank 1 fails in the third step where `phase` says; rank 0 says when it
/// noticed.
void train_with_fault(const ProcessGroup& world, const std::string& phase,
                      int signal) {
  std::atomic<int64_t> step = 0;  // the hook is called by another thread
  const auto is_due = [&](const char* here) {
    return world.rank() == 1 && step == 2 && phase == here;
  };
  struct FaultyNetImpl : NetImpl {
    Tensor forward(Tensor x) {
      if (fails) fail_by(signal);
      Tensor hidden = torch::relu(first(x));
      if (hook) {
        hidden.register_hook([this](const Tensor&) { fail_by(signal); });
      }
      return second(hidden);
    }
    bool fails = false, hook = false;
    int signal = 0;
  };
  std::cerr << std::setprecision(15);
  try {
    if (phase == "construction" && world.rank() == 1) fail_by(signal);
    auto net = filled(std::make_shared<FaultyNetImpl>());
    net->signal = signal;
    // A bucket for each gradient, so that some are on their way.
    DistributedDataParallel<FaultyNetImpl> model(
        net, world, DistributedDataParallelOptions().bucket_cap_mb(1e-5));
    model->register_comm_hook(
        [&](const ProcessGroup& ranks, GradBucket& bucket) {
          if (bucket.index == 1 && is_due("all-reduce")) fail_by(signal);
          allreduce_hook(ranks, bucket);
        });
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (step = 0; step < 1000; ++step) {
      net->fails = is_due("forward");
      net->hook = is_due("backward");
      optimizer.zero_grad();
      loss_of(model(inputs(step, 1)), targets(step, 1)).backward();
      optimizer.step();
      if (is_due("barrier")) fail_by(signal);
      if (step % 3 == 2) world.barrier();
    }
  } catch (const std::exception&) {
    std::cerr << "noticed at " << now_s() << " s\n";
    throw;
  }
}

const std::vector<std::string> kPhases{"construction", "forward", "backward",
                                       "all-reduce", "barrier"};

std::string task_name(const std::string& phase, int signal) {
  return phase + (signal == SIGKILL ? " killed" : " stopped");
}

struct Register {
  Register() {
    for (const auto& phase : kPhases) {
      for (const int signal : {SIGKILL, SIGSTOP}) {
        const RankTasks registered(task_name(phase, signal),
                                   [phase, signal](const ProcessGroup& world) {
                                     train_with_fault(world, phase, signal);
                                   });
      }
    }
  }
} const registered;

double seconds_after(const std::string& text, const std::string& what) {
  const auto at = text.find(what);
  return at == std::string::npos ? -1
                                 : std::stod(text.substr(at + what.size()));
}

class DdpFault : public testing::TestWithParam<const char*> {
 protected:
  static std::vector<std::string> run(const std::string& phase, int signal,
                                      std::chrono::seconds timeout) {
    ProcessGroupOptions options;
    options.backend(GetParam());
    options.timeout(timeout);
    return run_processes(task_name(phase, signal), 2, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, DdpFault, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(DdpFault, AKilledRankIsNoticedWithinASecond) {
  for (const auto& phase : kPhases) {
    const auto ends = run(phase, SIGKILL, std::chrono::seconds(60));
    EXPECT_PRED2(contains, ends[1], "signal 9") << phase;
    const double fault = seconds_after(ends[1], "fault at ");
    const double noticed = seconds_after(ends[0], "noticed at ");
    ASSERT_GT(fault, 0) << ends[1];
    ASSERT_GT(noticed, 0) << ends[0];
    EXPECT_LT(noticed - fault, 1) << phase << ": " << ends[0];
    EXPECT_PRED2(contains, ends[0], "rank 1 (") << phase;
    RecordProperty(phase, std::to_string(noticed - fault));
  }
}

// In a forward or a backward, the other rank waits in the same all-reduce.
TEST_P(DdpFault, AStoppedRankIsNoticedAtTheTimeout) {
  for (const auto& phase : {"construction", "all-reduce", "barrier"}) {
    const auto ends = run(phase, SIGSTOP, std::chrono::seconds(3));
    const double fault = seconds_after(ends[1], "fault at ");
    const double noticed = seconds_after(ends[0], "noticed at ");
    ASSERT_GT(fault, 0) << ends[1];
    ASSERT_GT(noticed, 0) << ends[0];
    EXPECT_GT(noticed - fault, 2.5) << phase << ": " << ends[0];
    EXPECT_LT(noticed - fault, 6) << phase << ": " << ends[0];
    EXPECT_PRED2(contains, ends[0], "rank 1") << phase;
  }
}

}  // namespace
}  // namespace lockstep
