#include "lockstep/device/worker.h"

#include <chrono>
#include <dirent.h>
#include <fstream>
#include <sched.h>
#include <set>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/tensor_device.h"
#include "tests/base/expect_problem.h"
#include "tests/base/run_in_child.h"

namespace lockstep::worker_test {
namespace {

// As if cut for a machine with one core a slice, however many there are.
Device slice(int index) {
  return {c10::kCPU, index,
          std::max(2, static_cast<int>(allowed_cores().size()))};
}

std::vector<std::unique_ptr<Worker>> two_workers() {
  std::vector<std::unique_ptr<Worker>> workers;
  for (const int i : {0, 1}) {
    workers.push_back(std::make_unique<Worker>(slice(i), 1));
  }
  return workers;
}

void run_on(Worker& worker, std::function<void()> task) {
  worker.start(std::move(task));
  worker.wait();
}

std::vector<int> cores_of_this_thread() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ids.insert(entry->d_name);
  }
  closedir(folder);
  return ids;
}

std::string allowed_list(const std::string& thread_id) {
  std::ifstream file("/proc/self/task/" + thread_id + "/status");
  for (std::string word; file >> word;) {
    if (word == "Cpus_allowed_list:") return file >> word, word;
  }
  return {};
}

int threads_of_a_new_thread() {
  int threads = 0;
  std::thread([&threads] { threads = at::get_num_threads(); }).join();
  return threads;
}

TEST(Worker, DoesNotExistInAForkedChild) {
  auto workers = two_workers();
  run_on(*workers[0], [] {});
  EXPECT_EQ(run_in_child([&] {
              try {
                workers[0]->start([] {});
              } catch (const DeviceError& error) {
                workers.clear();
                return error.code() == ErrorCode::kMisuse;
              }
              return false;
            }),
            "");
  run_on(*workers[0], [] {});
}

TEST(Worker, RunsOnTheCoresOfItsSlice) {
  const auto workers = two_workers();
  for (const auto& worker : workers) {
    std::vector<int> cores;
    run_on(*worker, [&] { cores = cores_of_this_thread(); });
    EXPECT_EQ(cores, cores_of(worker->device()));
  }
}

TEST(Worker, PinsItsIntraOpThreadsToo) {
  Worker worker(slice(0), 3);
  const auto before = thread_ids();
  int threads = 0;
  run_on(worker, [&threads] {
    threads = at::get_num_threads();
    torch::ones({1 << 20}).mul_(2);
  });
  EXPECT_EQ(threads, 3);
  size_t added = 0;
  for (const auto& id : thread_ids()) {
    if (before.count(id) != 0) continue;
    ++added;
    EXPECT_EQ(allowed_list(id), std::to_string(cores_of(slice(0)).front()));
  }
  EXPECT_EQ(added, 2u);
}

TEST(Worker, ComputesWithAThreadPerCoreUnlessTold) {
  EXPECT_EQ(Worker(slice(0)).intra_op_threads(), 1);
  EXPECT_EQ(Worker({c10::kCPU, 0, 1}).intra_op_threads(),
            static_cast<int>(allowed_cores().size()));
  EXPECT_THROW(Worker(slice(0), -1), DeviceError);
}

TEST(Worker, LeavesTheIntraOpThreadsOfOthersAlone) {
  const int mine = at::get_num_threads();
  const int fresh = threads_of_a_new_thread();
  Worker worker(slice(0), mine + 2);
  int its = 0;
  run_on(worker, [&its] { its = at::get_num_threads(); });
  EXPECT_EQ(its, mine + 2);
  EXPECT_EQ(at::get_num_threads(), mine);
  EXPECT_EQ(threads_of_a_new_thread(), fresh);
}

TEST(Worker, KeepsItsIntraOpThreadsThroughABackward) {
  Worker worker(slice(0), 2);
  int during = 0;
  int after = 0;
  run_on(worker, [&] {
    auto x = torch::ones({8}, torch::requires_grad());
    x.register_hook(
        [&](const torch::Tensor&) { during = at::get_num_threads(); });
    (x * 2).sum().backward();
    after = at::get_num_threads();
  });
  EXPECT_EQ(during, 2);
  EXPECT_EQ(after, 2);
}

TEST(Worker, IsTheCurrentDeviceInItsThread) {
  Worker worker(slice(1), 1);
  Device seen;
  run_on(worker, [&seen] { seen = current_device(); });
  EXPECT_EQ(seen, slice(1));
  EXPECT_EQ(current_device(), Device{});
}

TEST(Worker, ChargesItsSlice) {
  Worker worker(slice(1), 1);
  torch::Tensor x;
  run_on(worker, [&x] { x = torch::ones({100}); });
  EXPECT_EQ(device_of(x), slice(1));
}

TEST(Worker, RethrowsWhatTheTaskThrewOnce) {
  Worker worker(slice(0), 1);
  worker.start([] { throw std::out_of_range("from the task"); });
  EXPECT_THROW(worker.wait(), std::out_of_range);
  worker.wait();
  run_on(worker, [] {});
}

TEST(Worker, TakesOneTaskAtATime) {
  Worker worker(slice(0), 1);
  std::atomic<bool> go = false;
  worker.start([&go] { go.wait(false); });
  EXPECT_THROW(worker.start([] {}), DeviceError);
  go = true;
  go.notify_all();
  worker.wait();
}

TEST(Worker, FinishesItsTaskBeforeItEnds) {
  bool is_done = false;
  {
    Worker worker(slice(0), 1);
    worker.start([&is_done] {
      torch::ones({1000}).sum();
      is_done = true;
    });
  }
  EXPECT_TRUE(is_done);
}

TEST(Worker, RunsWithTheCallersModes) {
  Worker worker(slice(0), 1);
  bool grad = true;
  bool has_autocast = false;
  at::ScalarType type = at::kFloat;
  {
    const torch::NoGradGuard no_grad;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    worker.start([&] {
      grad = torch::GradMode::is_enabled();
      has_autocast = at::autocast::is_autocast_enabled(at::kCPU);
      type = at::autocast::get_autocast_dtype(at::kCPU);
    });
    worker.wait();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  EXPECT_FALSE(grad);
  EXPECT_TRUE(has_autocast);
  EXPECT_EQ(type, at::kHalf);
  run_on(worker, [&] { grad = torch::GradMode::is_enabled(); });
  EXPECT_TRUE(grad);
}

TEST(Worker, CountsTheTimeItIsBusy) {
  Worker worker(slice(0), 1);
  const auto begin = std::chrono::steady_clock::now();
  double inside_s = 0;
  run_on(worker, [&inside_s] {
    const auto start = std::chrono::steady_clock::now();
    auto x = torch::ones({200, 200});
    for (int i = 0; i < 20; ++i) x = x.mm(x).clamp(0, 1);
    inside_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
  });
  const std::chrono::duration<double> outside =
      std::chrono::steady_clock::now() - begin;
  EXPECT_GE(worker.busy_s(), inside_s);
  EXPECT_LE(worker.busy_s(), outside.count());
  worker.reset_busy();
  EXPECT_EQ(worker.busy_s(), 0.0);
}

TEST(Worker, FailsToStartOnAGpuThatIsNotThere) {
  EXPECT_THROW(Worker({c10::kCUDA, cuda_device_count(), 0}), DeviceError);
}

TEST(RunAll, GivesEachWorkerItsIndex) {
  const auto workers = two_workers();
  std::array<bool, 2> ran_there{};
  run_all(workers,
          [&](size_t k) { ran_there[k] = workers[k]->is_current_thread(); });
  EXPECT_TRUE(ran_there[0] && ran_there[1]);
  EXPECT_FALSE(workers[0]->is_current_thread());
}

TEST(RunAll, RethrowsTheFirstWorkersErrorAfterAllHaveEnded) {
  const auto workers = two_workers();
  std::atomic<int> ended = 0;
  const auto fail = [&](size_t k) {
    ++ended;
    throw std::runtime_error("worker " + std::to_string(k));
  };
  EXPECT_EQ(error_of<std::runtime_error>([&] { run_all(workers, fail); }),
            "worker 0");
  EXPECT_EQ(ended, 2);
  run_all(workers, [](size_t) {});
}

TEST(RunAll, RefusesToWaitForItself) {
  const auto workers = two_workers();
  expect_problem(error_of<DeviceError>([&] {
                   run_all(workers,
                           [&](size_t) { run_all(workers, [](size_t) {}); });
                 }),
                 ErrorCode::kMisuse, {"run_all()", "cpu:0"});
}

TEST(RunAll, WorksWithMoreWorkersThanCores) {
  const int count = static_cast<int>(allowed_cores().size()) + 3;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(Device{c10::kCPU, i, count}, 1));
  }
  std::atomic<int> sum = 0;
  for (int round = 0; round < 100; ++round) {
    run_all(workers, [&](size_t k) { sum += static_cast<int>(k); });
  }
  EXPECT_EQ(sum, 100 * count * (count - 1) / 2);
}

}  // namespace
}  // namespace lockstep::worker_test
