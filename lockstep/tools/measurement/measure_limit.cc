#include "lockstep/tools/measurement/measure_limit.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/json.h"
#include "lockstep/base/median.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/worker.h"
#include "lockstep/tools/measurement/device_time.h"
#include "lockstep/tools/measurement/matrix_replay.h"
#include "lockstep/tools/measurement/operator_recording.h"

namespace lockstep::tools {
namespace {

using torch::Tensor;

struct Recorded {
  std::vector<RecordedStep> steps;
  TraceLog trace;
};

/// Records `count` steps. The first one is to warm up.
Recorded record(int64_t count, int rank, const std::function<void()>& step) {
  Recorded recorded;
  const TraceRecording trace(rank);
  OperatorRecording operators;
  for (int64_t i = 0; i < count; ++i) {
    RecordedStep one{.begin_ns = trace_clock_ns()};
    step();
    one.end_ns = trace_clock_ns();
    one.operators = operators.take();
    if (i > 0) recorded.steps.push_back(std::move(one));
  }
  recorded.trace = trace.log();
  return recorded;
}

/// Returns the parts of `step_s` that the recorded steps spend on each kind of
/// work: means over the steps and the rank's devices.
StepParts parts_of(const Recorded& recorded, const training::Plan& plan,
                   double step_s) {
  StepParts sum;
  for (const RecordedStep& step : recorded.steps) {
    for (const Device& device : plan.devices) {
      const StepParts parts =
          time_of_device(device, plan.devices.size(),
                         std::this_thread::get_id(), step, recorded.trace);
      for (const StepPart& part : kStepParts) {
        sum.*part.seconds += parts.*part.seconds;
      }
    }
  }
  double total_s = 0;
  for (const StepPart& part : kStepParts) total_s += sum.*part.seconds;
  for (const StepPart& part : kStepParts) {
    sum.*part.seconds *= total_s > 0 ? step_s / total_s : 0;
  }
  return sum;
}

/// Returns the products of a step by device. Those that the caller's thread
/// computes count for the first device.
std::vector<std::vector<MatrixCall>> products_by_device(
    const OperatorLog& log, const std::vector<Device>& devices) {
  std::vector<std::vector<MatrixCall>> products(devices.size());
  for (const RecordedOperator& op : log.operators) {
    if (op.matrix_call < 0) continue;
    const auto device = std::ranges::find(devices, op.device);
    const auto k =
        device == devices.end() ? 0 : std::distance(devices.begin(), device);
    products[static_cast<size_t>(k)].push_back(
        log.matrix_calls[static_cast<size_t>(op.matrix_call)]);
  }
  return products;
}

/// Work that all devices of all ranks do at the same time.
class Together {
 public:
  Together(const ProcessGroup& world, const training::Plan& plan)
      : world_(world) {
    for (const Device& device : plan.devices) {
      workers_.push_back(
          std::make_unique<Worker>(device, plan.intra_op_threads));
    }
  }

  size_t devices() const { return workers_.size(); }

  void run(const std::function<void(size_t)>& task) const {
    run_all(workers_, task);
  }

  /// Returns the median time until the slowest device has done `task`, of
  /// `least` runs or as many as fit into a fifth of a second.
  double median_s(int64_t least,
                  const std::function<void(size_t)>& task) const {
    constexpr double kEnoughS = 0.2;
    constexpr size_t kMax = 100;
    std::vector<double> seconds;
    double total_s = 0;
    while (seconds.size() < static_cast<size_t>(least) ||
           (total_s < kEnoughS && seconds.size() < kMax)) {
      world_.barrier();
      const Stopwatch watch;
      run(task);
      const Tensor slowest = torch::full({1}, watch.seconds(), torch::kDouble);
      world_.all_reduce(slowest, ReduceOp::MAX);
      seconds.push_back(slowest.item<double>());
      total_s += seconds.back();  // all ranks have the same
    }
    return median(std::move(seconds));
  }

 private:
  ProcessGroup world_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

/// Returns the sum over the ranks.
double sum_of_ranks(const ProcessGroup& world, double value) {
  const Tensor sum = torch::full({1}, value, torch::kDouble);
  world.all_reduce(sum);
  return sum.item<double>();
}

/// Measures how many bytes per second all devices together read and write, if
/// each of them copies half of `bytes` to the other half.
double measure_copies(const ProcessGroup& world, const Together& together,
                      int64_t times, int64_t bytes) {
  constexpr int64_t kMinBytes = 1 << 20;
  const int64_t half = std::max(bytes, kMinBytes) / 2;
  std::vector<std::pair<Tensor, Tensor>> memory(together.devices());
  together.run([&](size_t k) {
    memory[k] = {torch::ones({half}, torch::kChar),
                 torch::ones({half}, torch::kChar)};
  });
  const double seconds = together.median_s(times, [&](size_t k) {
    const torch::NoGradGuard no_grad;
    memory[k].second.copy_(memory[k].first);
  });
  const double moved =
      sum_of_ranks(world, 2 * static_cast<double>(half) *
                              static_cast<double>(together.devices()));
  return seconds > 0 ? moved / seconds : 0;
}

/// Returns the bytes that an update must read and write: the gradients of each
/// device, and the parameters and the optimizer's state, which it also writes.
double update_bytes(const LimitedSteps& steps, const training::Plan& plan) {
  return static_cast<double>(steps.parameters) * sizeof(float) *
         static_cast<double>(plan.world_size + 2 * (1 + steps.states));
}

/// Returns the mean parts of all ranks.
StepParts mean_of_ranks(const ProcessGroup& world, const StepParts& own) {
  StepParts mean;
  for (const StepPart& part : kStepParts) {
    mean.*part.seconds = sum_of_ranks(world, own.*part.seconds) /
                         static_cast<double>(world.size());
  }
  return mean;
}

}  // namespace

std::optional<StepLimit> measure_limit(const ProcessGroup& world,
                                       const training::Plan& plan,
                                       const LimitedSteps& steps,
                                       const std::function<void()>& step) {
  if (!plan.devices.front().is_cpu()) return std::nullopt;
  constexpr int64_t kFew = 5;
  constexpr int64_t kStepsPerRepetition = 6;
  const int64_t times =
      std::clamp<int64_t>(steps.timed / kStepsPerRepetition, 1, kFew);
  const Recorded recorded = record(times + 1, plan.rank, step);
  const auto products =
      products_by_device(recorded.steps.back().operators, plan.devices);

  const Together together(world, plan);
  std::vector<std::unique_ptr<MatrixReplay>> replays(plan.devices.size());
  std::vector<MatrixWork> works(plan.devices.size());
  together.run([&](size_t k) {
    replays[k] = std::make_unique<MatrixReplay>(products[k]);
    works[k] = replays[k]->count();
  });
  // The parts of all ranks are scaled to the step of rank 0.
  const double step_s =
      sum_of_ranks(world, world.rank() == 0 ? steps.median_s : 0);
  StepLimit limit{
      .step_s = step_s,
      .parts = mean_of_ranks(world, parts_of(recorded, plan, step_s))};
  limit.products_alone_s =
      together.median_s(times, [&](size_t k) { replays[k]->run(); });
  int64_t most_bytes = 0;
  for (size_t k = 0; k < works.size(); ++k) {
    limit.products += works[k].calls;
    limit.flops += works[k].flops;
    limit.bytes += works[k].bytes;
    most_bytes = std::max(most_bytes, replays[k]->storage_bytes());
  }
  replays.clear();
  limit.products = static_cast<int64_t>(
      sum_of_ranks(world, static_cast<double>(limit.products)));
  limit.flops = sum_of_ranks(world, limit.flops);
  limit.bytes = sum_of_ranks(world, limit.bytes) + update_bytes(steps, plan);
  limit.bytes_per_s = measure_copies(world, together, times, most_bytes);
  return limit;
}

}  // namespace lockstep::tools
