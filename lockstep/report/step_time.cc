#include "lockstep/report/step_time.h"

#include <ctime>
#include <numeric>
#include <unistd.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/device/memory.h"
#include "lockstep/optim/state.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/images/memory_format.h"
#include "lockstep/train/chrome_trace.h"
#include "lockstep/train/rank_report.h"
#include "lockstep/train/step_recorder.h"
#include "lockstep/train/step_runner.h"

namespace lockstep::report {
namespace {

// Steps among which the typical one is looked for, and that a trace holds.
constexpr int64_t kTracedSteps = 10;

bool is_channels_last(const tasks::ImageRun& run, const train::Plan& plan) {
  return run.images.channels_last.value_or(
      tasks::prefers_channels_last(run.images.model, plan.devices));
}

/// The part of a batch that is this rank's.
data::Batch fixed_batch(const tasks::ImageRun& run, const train::Plan& plan) {
  const train::TrainOptions& options = run.train;
  const models::ModelSpec& model = run.images.model;
  torch::manual_seed(options.seed);
  const int64_t samples = options.batch_size;
  torch::Tensor inputs = model.name == "mlp"
                             ? torch::randn({samples, model.in_features})
                             : torch::randn({samples, 3, 32, 32});
  if (is_channels_last(run, plan) && inputs.dim() == 4) {
    inputs = inputs.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  const torch::Tensor targets = torch::randint(model.classes, {samples});
  const ShardRange own =
      shards_of_worker(options.world.rank(), options.world.size(), plan.shards);
  const SampleRange part = samples_of(own, samples, plan.shards);
  return {.inputs = {inputs.narrow(0, part.first, part.count())},
          .target = targets.narrow(0, part.first, part.count()),
          .samples = part.count(),
          .total = samples};
}

/// Processor time of this thread.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

void set_times(train::RunReport& report, const std::vector<double>& times_s) {
  report.steps = static_cast<int64_t>(times_s.size());
  report.step_time_s = train::summarize(times_s);
  report.total_time_s = std::accumulate(times_s.begin(), times_s.end(), 0.0);
  report.samples_per_s =
      static_cast<double>(report.batch_size) / report.step_time_s.median;
}

/// The time line of a typical step, and the trace of all.
void add_traces(Measurement& measured, const train::StepRecorder& recorder,
                const World& world, const std::string& trace) {
  const auto traces = recorder.gather();
  measured.time_line = train::typical_step(traces);
  if (world.rank() == 0 && !trace.empty()) {
    train::write_chrome_trace(trace, traces);
  }
}

/// The loop, with a watch between its phases.
class OwnLoop {
 public:
  OwnLoop(const tasks::ImageRun& run, const train::Plan& plan)
      : world_(run.train.world),
        module_(make(run, plan)),
        model_(module_, world_),
        optimizer_(module_->parameters(),
                   torch::optim::SGDOptions(run.images.optimizer.lr)
                       .momentum(run.images.optimizer.momentum)) {}

  void step(const data::Batch& batch) {
    const TraceLane lane(world_.rank(), "main");
    const TraceSpan span("step", TraceCategory::kStep);
    Stopwatch watch;
    optimizer_.zero_grad();
    const torch::Tensor logits = model_->forward(batch.input());
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(logits, batch.target_tensor());
    phases_.forward += watch.restart();
    loss.backward();
    phases_.backward += watch.restart();
    optimizer_.step();
    phases_.update += watch.restart();
    ++steps_;
  }

  void restart_accounts() {
    phases_ = {};
    steps_ = 0;
    reset_peak_memory();
  }

  int64_t parameters() const { return models::count_parameters(*module_); }
  int64_t parameter_bytes() const {
    return optim::bytes_of(module_->parameters());
  }
  train::PhaseReport phases() const {
    const auto steps = static_cast<double>(std::max<int64_t>(steps_, 1));
    return {.forward = phases_.forward / steps,
            .backward = phases_.backward / steps,
            .update = phases_.update / steps};
  }

 private:
  static std::shared_ptr<models::Model> make(const tasks::ImageRun& run,
                                             const train::Plan& plan) {
    torch::manual_seed(run.train.seed);
    return tasks::make_laid_out(run.images.model, is_channels_last(run, plan));
  }

  World world_;
  std::shared_ptr<models::Model> module_;
  DistributedDataParallel<models::Model> model_;
  torch::optim::SGD optimizer_;
  train::PhaseReport phases_;  // sums over the steps
  int64_t steps_ = 0;
};

}  // namespace

Measurement measure_steps(const tasks::ImageRun& run, const TimedSteps& timed,
                          const std::string& trace) {
  const train::TrainOptions& options = run.train;
  const auto plan = train::make_plan(options);
  tasks::ImageTask task(run.images);
  task.begin(options, plan, {});
  train::StepRunner runner(task, options, plan);
  const auto batch = fixed_batch(run, plan);
  int64_t step = 0;
  for (; step < timed.warmup; ++step) runner.step(batch, {.step = step}, 0);
  runner.restart_accounts();
  train::StepRecorder recorder(options.world, plan.devices, kTracedSteps);

  Measurement result;
  auto& times = result.step_times_s;
  for (const int64_t end = step + timed.steps; step < end; ++step) {
    recorder.begin_step();
    const Stopwatch watch;
    runner.step(batch, {.step = step}, 0);
    times.push_back(watch.seconds());
  }
  auto& report = result.report;
  runner.describe(report);
  set_times(report, times);
  runner.fill(report, report.total_time_s);
  add_traces(result, recorder, options.world, trace);
  return result;
}

std::vector<std::string> compared_strategies() {
  auto names = train::strategy_names();
  names.emplace_back(kOwnLoop);
  return names;
}

Measurement measure_own_loop(const tasks::ImageRun& run,
                             const TimedSteps& timed,
                             const std::string& trace) {
  const train::TrainOptions& options = run.train;
  const auto plan = train::make_plan(options);
  const World& world = options.world;
  const Device device = plan.devices.front();
  // What the main thread of a user's program has, which the launcher bound to
  // this rank's cores.
  torch::set_num_threads(static_cast<int>(plan.intra_op_threads));
  const MemoryScope scope(device);
  OwnLoop loop(run, plan);
  const auto batch = fixed_batch(run, plan);
  for (int64_t step = 0; step < timed.warmup; ++step) loop.step(batch);
  loop.restart_accounts();
  const double busy_before_s = thread_seconds();
  train::StepRecorder recorder(world, plan.devices, kTracedSteps);

  Measurement result;
  for (int64_t step = 0; step < timed.steps; ++step) {
    recorder.begin_step();
    const Stopwatch watch;
    loop.step(batch);
    result.step_times_s.push_back(watch.seconds());
  }
  const double busy_s = thread_seconds() - busy_before_s;
  train::RunReport& report = result.report;
  report.lockstep = kVersion;
  report.strategy = kOwnLoop;
  report.model = run.images.model.name;
  report.parameters = loop.parameters();
  report.world_size = world.size();
  report.processes = world.size();
  report.shards = plan.shards;
  report.intra_op_threads = plan.intra_op_threads;
  report.batch_size = options.batch_size;
  report.split = chunk_sizes(options.batch_size, world.size());
  set_times(report, result.step_times_s);
  // A copy on each rank, and a momentum buffer for each.
  report.parameter_bytes = loop.parameter_bytes() * world.size();
  report.optimizer_state_bytes = report.parameter_bytes;
  train::RankReport own{.devices = {}, .phases_s = loop.phases()};
  own.pid = ::getpid();
  own.devices.push_back(
      {.name = device.name(),
       .samples = batch.samples * timed.steps,
       .busy_fraction = std::min(busy_s / report.total_time_s, 1.0),
       .memory_peak_bytes = memory_stats(device).peak_bytes});
  const auto reports = train::gather_reports(world, own);
  report.phases_s = train::slowest(reports);
  for (const auto& rank : reports) {
    report.devices.push_back(rank.devices.front());
  }
  add_traces(result, recorder, world, trace);
  return result;
}

}  // namespace lockstep::report
