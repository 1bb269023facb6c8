#include "lockstep/tools/measurement/step_time.h"

#include <ctime>
#include <memory>
#include <numeric>
#include <optional>
#include <unistd.h>
#include <utility>

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/memory.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tools/comparison/run_values.h"
#include "lockstep/tools/measurement/measure_limit.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/record/trace_recorder.h"
#include "lockstep/train/step/step_accounts.h"
#include "lockstep/train/step/step_runner.h"

namespace lockstep::tools {
namespace {

// Number of steps that a trace contains, and from which the typical step is
// chosen.
constexpr int64_t kTracedSteps = 10;

/// Returns the processor time of this thread.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

void set_times(training::RunReport& report,
               const std::vector<double>& times_s) {
  report.steps = static_cast<int64_t>(times_s.size());
  report.step_time_s = training::summarize(times_s);
  report.total_time_s = std::accumulate(times_s.begin(), times_s.end(), 0.0);
  report.samples_per_s =
      static_cast<double>(report.batch_size) / report.step_time_s.median;
}

/// Adds the time line of a typical step, and writes the trace of all steps.
void add_traces(Measurement& measured, const training::StepRecorder& recorder,
                const TimedRun& run) {
  const auto traces = recorder.gather();
  measured.time_line = training::typical_step(traces);
  if (run.world.rank() == 0 && !run.trace.empty()) {
    training::write_chrome_trace(run.trace, traces);
  }
}

/// Describes the timed steps to measure_limit().
LimitedSteps limited_steps(const TimedRun& run,
                           const training::RunReport& report) {
  const auto kind = run.work->optimizer().optimizer;
  return {.median_s = report.step_time_s.median,
          .timed = run.steps,
          .parameters = report.parameters,
          .states = kind == tasks::OptimizerKind::kAdamW ? 2 : 1};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const tasks::OptimizerOptions& options, const torch::nn::Module& module) {
  if (options.optimizer == tasks::OptimizerKind::kAdamW) {
    return std::make_unique<torch::optim::AdamW>(
        module.parameters(), torch::optim::AdamWOptions(options.lr));
  }
  return std::make_unique<torch::optim::SGD>(
      module.parameters(),
      torch::optim::SGDOptions(options.lr).momentum(options.momentum));
}

/// Returns the seconds of the last step's phases within forward() and
/// backward().
template <class Module>
PhaseTimes phases_within(const DataParallel<Module>& model) {
  return model->phase_times();
}
template <class Module>
PhaseTimes phases_within(const DistributedDataParallel<Module>&) {
  return {};
}

/// Returns the seconds in which the devices' threads computed, without the time
/// of the caller's thread.
template <class Module>
std::vector<double> busy_seconds(const DataParallel<Module>& model) {
  std::vector<double> busy_s;
  for (const auto& worker : model->workers()) {
    busy_s.push_back(worker->busy_s());
  }
  return busy_s;
}
template <class Module>
std::vector<double> busy_seconds(const DistributedDataParallel<Module>&) {
  return {0};  // the caller's thread is the device's thread
}

/// A training loop as users write it, with a stopwatch between its phases.
template <class Model>
class OwnLoop {
 public:
  OwnLoop(Model model, const TimedRun& run, int rank)
      : rank_(rank),
        autocast_(training::autocast_type(run.train.precision())),
        model_(std::move(model)),
        optimizer_(make_optimizer(run.work->optimizer(), *model_->module())) {
    if (run.fuses) fused_.emplace(optim::fuse(*optimizer_, model_));
  }

  void step(const data::Batch& batch) {
    const TraceLane lane(rank_, "main");
    const TraceSpan span("step", TraceCategory::kStep);
    Stopwatch watch;
    std::optional<TraceSpan> phase(std::in_place, "forward",
                                   TraceCategory::kCompute);
    optimizer_->zero_grad();
    const torch::Tensor loss = loss_of(batch);
    const double forward_s = watch.restart();
    const PhaseTimes within_forward = phases_within(model_);
    phase.emplace("backward", TraceCategory::kCompute);
    loss.backward();
    const double backward_s = watch.restart();
    const PhaseTimes within_backward = phases_within(model_);
    phase.emplace("update", TraceCategory::kCompute);
    if (fused_) {
      fused_->step();
    } else {
      optimizer_->step();
    }
    phase.reset();
    phases_.update += watch.restart();
    phases_.scatter += within_forward.scatter_s;
    phases_.replicate += within_forward.replicate_s;
    phases_.gather += within_forward.gather_s;
    phases_.forward += forward_s - within_forward.scatter_s -
                       within_forward.replicate_s - within_forward.gather_s;
    phases_.reduce += within_backward.reduce_s;
    phases_.backward += backward_s - within_backward.reduce_s;
    ++steps_;
  }

  void restart_accounts() {
    phases_ = {};
    steps_ = 0;
    reset_peak_memory();
  }

  const Model& model() const { return model_; }
  training::PhaseReport mean_phases() const {
    training::PhaseReport mean;
    for (const Phase& phase : kPhases) {
      mean.*phase.seconds = phases_.*phase.seconds /
                            static_cast<double>(std::max<int64_t>(steps_, 1));
    }
    return mean;
  }

 private:
  torch::Tensor loss_of(const data::Batch& batch) {
    const torch::Device device = model_->module()->parameters()[0].device();
    const AutocastScope precision(device.type(), autocast_);
    // (N, classes), or (N, T, vocabulary).
    torch::Tensor logits = model_->forward(batch.data);
    if (logits.dim() == 3) logits = logits.flatten(0, 1);
    return torch::nn::functional::cross_entropy(
        logits, batch.target.flatten().to(device));
  }

  int rank_;
  std::optional<c10::ScalarType> autocast_;
  Model model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<optim::FusedOptimizer> fused_;
  training::PhaseReport phases_;  // sums over the steps
  int64_t steps_ = 0;
};

/// Measures a training loop with `model` on the devices of `plan`.
template <class Model>
Measurement measure_loop(Model model, const TimedRun& run,
                         const training::Plan& plan) {
  const training::TrainOptions& options = run.train;
  const ProcessGroup& world = run.world;
  OwnLoop<Model> loop(std::move(model), run, plan.rank);
  const auto batch = random_batch(run, plan);
  for (int64_t step = 0; step < run.warmup; ++step) loop.step(batch);
  loop.restart_accounts();
  std::vector<double> busy_before_s = busy_seconds(loop.model());
  busy_before_s.front() += thread_seconds();
  std::optional<training::StepRecorder> recorder(std::in_place, world,
                                                 plan.devices, kTracedSteps);

  Measurement result;
  for (int64_t step = 0; step < run.steps; ++step) {
    recorder->begin_step();
    const Stopwatch watch;
    loop.step(batch);
    result.step_times_s.push_back(watch.seconds());
  }
  std::vector<double> busy_s = busy_seconds(loop.model());
  busy_s.front() += thread_seconds();
  training::RunReport& report = result.report;
  report.lockstep = kVersion;
  report.precision = training::to_string(options.precision());
  report.parameters = models::count_parameters(*loop.model()->module());
  report.world_size = plan.world_size;
  report.processes = world.size();
  report.shards = plan.shards;
  report.intra_op_threads = plan.intra_op_threads;
  report.batch_size = options.batch_size();
  report.split = chunk_sizes(options.batch_size(), report.world_size);
  set_times(report, result.step_times_s);
  // Each process has a copy, with one momentum buffer for it, or two for AdamW.
  const bool is_adamw =
      run.work->optimizer().optimizer == tasks::OptimizerKind::kAdamW;
  report.parameter_bytes =
      optim::bytes_of(loop.model()->module()->parameters()) * world.size();
  report.optimizer_state_bytes = report.parameter_bytes * (is_adamw ? 2 : 1);
  training::RankReport own{.devices = {}, .phases_s = loop.mean_phases()};
  own.pid = ::getpid();
  const auto split =
      chunk_sizes(batch.samples, static_cast<int64_t>(plan.devices.size()));
  for (size_t k = 0; k < plan.devices.size(); ++k) {
    own.devices.push_back(
        {.name = plan.devices[k].name(),
         .samples = k < split.size() ? split[k] * run.steps : 0,
         .busy_fraction = std::min(
             (busy_s[k] - busy_before_s[k]) / report.total_time_s, 1.0),
         .memory_peak_bytes = memory_stats(plan.devices[k]).peak_bytes});
  }
  const auto reports = training::gather_reports(world, own);
  report.phases_s = reports.front().phases_s;
  for (const auto& rank : reports) {
    report.devices.insert(report.devices.end(), rank.devices.begin(),
                          rank.devices.end());
  }
  add_traces(result, *recorder, run);
  recorder.reset();
  result.limit = measure_limit(world, plan, limited_steps(run, report),
                               [&] { loop.step(batch); });
  return result;
}

}  // namespace

Measurement measure_steps(const TimedRun& run) {
  const training::TrainOptions& options = run.train;
  const auto plan = training::make_plan(options, run.world);
  const auto task = run.work->make_task();
  task->begin(options, plan, {});
  training::StepRunner runner(*task, options, run.world, plan);
  const auto batch = task->prepare(random_batch(run, plan));
  int64_t step = 0;
  for (; step < run.warmup; ++step) runner.step(batch, {.step = step}, 0);
  runner.restart_accounts();
  std::optional<training::StepRecorder> recorder(std::in_place, run.world,
                                                 plan.devices, kTracedSteps);

  Measurement result;
  auto& times = result.step_times_s;
  for (const int64_t end = step + run.steps; step < end; ++step) {
    recorder->begin_step();
    const Stopwatch watch;
    runner.step(batch, {.step = step}, 0);
    times.push_back(watch.seconds());
  }
  auto& report = result.report;
  runner.describe(report);
  set_times(report, times);
  runner.fill(report, report.total_time_s);
  add_traces(result, *recorder, run);
  recorder.reset();
  result.limit =
      measure_limit(run.world, plan, limited_steps(run, report),
                    [&] { runner.step(batch, {.step = step++}, 0); });
  return result;
}

std::vector<std::string> compared_strategies() {
  auto names = training::strategy_names();
  names.insert(names.end(), own_loops().begin(), own_loops().end());
  return names;
}

Measurement measure_own_loop(const TimedRun& run) {
  const training::TrainOptions& options = run.train;
  const auto plan = training::make_plan(options, run.world);
  const MemoryScope scope(plan.devices.front());
  torch::manual_seed(options.seed());
  const std::shared_ptr<models::Model> module = run.work->make_model(plan);
  module->to(torch_device(plan.devices.front()));
  Measurement result;
  if (options.strategy() == training::Strategy::kDistributed) {
    // As in a user's program, the launcher has bound the main thread to the
    // cores of this rank.
    torch::set_num_threads(static_cast<int>(plan.intra_op_threads));
    result =
        measure_loop(DistributedDataParallel(module, run.world), run, plan);
    result.report.strategy = run.fuses ? kDdpLoop : kDdpLoopUnfused;
  } else {
    result = measure_loop(DataParallel(module, plan.devices), run, plan);
    result.report.strategy = run.fuses ? kDpLoop : kDpLoopUnfused;
  }
  result.report.model = run.work->model();
  return result;
}

}  // namespace lockstep::tools
