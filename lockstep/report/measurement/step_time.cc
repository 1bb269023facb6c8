#include "lockstep/report/measurement/step_time.h"

#include <ctime>
#include <memory>
#include <numeric>
#include <optional>
#include <unistd.h>
#include <utility>

#include "lockstep/base/chunk.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/device/autocast.h"
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

using tasks::ImageOptions;
using tasks::TextOptions;

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

std::shared_ptr<models::Model> make_module(const ImageOptions& images,
                                           const train::Plan& plan) {
  return tasks::make_laid_out(images.model, is_channels_last(images, plan));
}
std::shared_ptr<models::LanguageModel> make_module(const TextOptions& text,
                                                   const train::Plan&) {
  return models::make_language_model(text.model);
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

/// The loop, with a watch between its phases.
template <class Module, class Options>
class OwnLoop {
 public:
  OwnLoop(const train::TrainOptions& options, const Options& task,
          const train::Plan& plan)
      : world_(options.world),
        autocast_(train::autocast_type(options.precision)),
        module_(make(options, task, plan)),
        model_(module_, world_),
        optimizer_(make_optimizer(task.optimizer, *module_)) {}

  void step(const data::Batch& batch) {
    const TraceLane lane(world_.rank(), "main");
    const TraceSpan span("step", TraceCategory::kStep);
    Stopwatch watch;
    optimizer_->zero_grad();
    const torch::Tensor loss = loss_of(batch);
    phases_.forward += watch.restart();
    loss.backward();
    phases_.backward += watch.restart();
    optimizer_->step();
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
  static std::shared_ptr<Module> make(const train::TrainOptions& options,
                                      const Options& task,
                                      const train::Plan& plan) {
    torch::manual_seed(options.seed);
    return make_module(task, plan);
  }

  torch::Tensor loss_of(const data::Batch& batch) {
    const AutocastScope precision(torch::kCPU, autocast_);
    // (N, classes), or (N, T, vocabulary).
    torch::Tensor logits = model_->forward(batch.input());
    if (logits.dim() == 3) logits = logits.flatten(0, 1);
    return torch::nn::functional::cross_entropy(
        logits, batch.target_tensor().flatten());
  }

  World world_;
  std::optional<c10::ScalarType> autocast_;
  std::shared_ptr<Module> module_;
  DistributedDataParallel<Module> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  train::PhaseReport phases_;  // sums over the steps
  int64_t steps_ = 0;
};

}  // namespace

Measurement measure_steps(const TimedRun& run, const TimedSteps& timed,
                          const std::string& trace) {
  const train::TrainOptions& options = run.train;
  const auto plan = train::make_plan(options);
  const auto task = make_task(run);
  task->begin(options, plan, {});
  train::StepRunner runner(*task, options, plan);
  const auto batch = task->prepare(random_batch(run, plan));
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

std::vector<std::string> compared_models() {
  auto names = models::names();
  names.emplace_back("gpt-char");
  return names;
}

namespace {

template <class Module, class Options>
Measurement measure_loop(const TimedRun& run, const Options& task,
                         const TimedSteps& timed, const std::string& trace) {
  const train::TrainOptions& options = run.train;
  const auto plan = train::make_plan(options);
  const World& world = options.world;
  const Device device = plan.devices.front();
  // What the main thread of a user's program has, which the launcher bound to
  // this rank's cores.
  torch::set_num_threads(static_cast<int>(plan.intra_op_threads));
  const MemoryScope scope(device);
  OwnLoop<Module, Options> loop(options, task, plan);
  const auto batch = random_batch(run, plan);
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
  report.model = task.model.name;
  report.precision = train::to_string(options.precision);
  report.parameters = loop.parameters();
  report.world_size = world.size();
  report.processes = world.size();
  report.shards = plan.shards;
  report.intra_op_threads = plan.intra_op_threads;
  report.batch_size = options.batch_size;
  report.split = chunk_sizes(options.batch_size, world.size());
  set_times(report, result.step_times_s);
  // A copy on each rank, and a momentum buffer for each, or AdamW's two.
  const bool is_adamw =
      task.optimizer.optimizer == tasks::OptimizerKind::kAdamW;
  report.parameter_bytes = loop.parameter_bytes() * world.size();
  report.optimizer_state_bytes = report.parameter_bytes * (is_adamw ? 2 : 1);
  train::RankReport own{.devices = {}, .phases_s = loop.phases()};
  own.pid = ::getpid();
  own.devices.push_back(
      {.name = device.name(),
       .samples = batch.samples * timed.steps,
       .busy_fraction = std::min(busy_s / report.total_time_s, 1.0),
       .memory_peak_bytes = memory_stats(device).peak_bytes});
  const auto reports = train::gather_reports(world, own);
  report.phases_s = reports.front().phases_s;
  for (const auto& rank : reports) {
    report.devices.push_back(rank.devices.front());
  }
  add_traces(result, recorder, world, trace);
  return result;
}

}  // namespace

Measurement measure_own_loop(const TimedRun& run, const TimedSteps& timed,
                             const std::string& trace) {
  if (const auto* text = std::get_if<TextOptions>(&run.task)) {
    return measure_loop<models::LanguageModel>(run, *text, timed, trace);
  }
  return measure_loop<models::Model>(run, std::get<ImageOptions>(run.task),
                                     timed, trace);
}

}  // namespace lockstep::report
