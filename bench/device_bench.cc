// Measures the overhead of the device layer in a training step: hand-overs to
// workers, allocations, random streams.
#include <memory>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>
#include <torch/types.h>

#include "lockstep/base/cores.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/random.h"
#include "lockstep/device/worker.h"

namespace lockstep {
namespace {

std::vector<std::unique_ptr<Worker>> make_workers(int count) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(
        std::make_unique<Worker>(Device{c10::kCPU, i, count}, 1));
  }
  return workers;
}

void hand_over(benchmark::State& state) {
  const auto workers = make_workers(static_cast<int>(state.range(0)));
  for (auto _ : state) run_all(workers, [](size_t) {});
}
BENCHMARK(hand_over)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

// Like hand_over, but the workers compute long enough for the caller to sleep.
void hand_over_with_work(benchmark::State& state) {
  const auto workers = make_workers(static_cast<int>(state.range(0)));
  const auto x = torch::ones({200, 200});
  for (auto _ : state) {
    run_all(workers, [&](size_t) { benchmark::DoNotOptimize(x.mm(x)); });
  }
}
BENCHMARK(hand_over_with_work)->Arg(1)->Arg(2)->UseRealTime();

void thread_state(benchmark::State& state) {
  for (auto _ : state) {
    const at::ThreadLocalState copy;
    const at::ThreadLocalStateGuard guard(copy);
  }
}
BENCHMARK(thread_state);

void allocate(benchmark::State& state, c10::Allocator& allocator) {
  for (auto _ : state) {
    const auto block = allocator.allocate(size_t(state.range(0)));
    benchmark::DoNotOptimize(block.get());
  }
}
void allocate_default(benchmark::State& state) {
  allocate(state, *c10::GetDefaultCPUAllocator());
}
void allocate_accounting(benchmark::State& state) {
  install_accounting_allocator();
  allocate(state, *c10::GetCPUAllocator());
}
BENCHMARK(allocate_default)->Arg(64)->Arg(64 << 10)->Arg(4 << 20);
BENCHMARK(allocate_accounting)->Arg(64)->Arg(64 << 10)->Arg(4 << 20);

void random_scope(benchmark::State& state) {
  uint64_t step = 0;
  for (auto _ : state) const RandomScope scope(1, ++step, 0);
}
BENCHMARK(random_scope);

void dropout_without_scope(benchmark::State& state) {
  const auto x = torch::ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(torch::dropout(x, 0.1, true));
}
void dropout_in_scope(benchmark::State& state) {
  const RandomScope scope(1, 2, 3);
  dropout_without_scope(state);
}
BENCHMARK(dropout_without_scope);
BENCHMARK(dropout_in_scope);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
