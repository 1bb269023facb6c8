#include "lockstep/report/step_time.h"

#include <numeric>

#include "lockstep/base/chunk.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/train/chrome_trace.h"
#include "lockstep/train/step_recorder.h"
#include "lockstep/train/step_runner.h"

namespace lockstep::report {
namespace {

// Steps among which the typical one is looked for, and that a trace holds.
constexpr int64_t kTracedSteps = 10;

/// The part of a batch that is this rank's.
data::Batch fixed_batch(const train::TrainOptions& options,
                        const train::Plan& plan) {
  torch::manual_seed(options.seed);
  const int64_t samples = options.batch_size;
  data::Batch batch;
  batch.inputs = options.model.name == "mlp"
                     ? torch::randn({samples, options.model.in_features})
                     : torch::randn({samples, 3, 32, 32});
  if (plan.channels_last && batch.inputs.dim() == 4) {
    batch.inputs = batch.inputs.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  batch.targets = torch::randint(options.model.classes, {samples});
  batch.total = samples;
  const ShardRange own =
      shards_of_worker(options.world.rank(), options.world.size(), plan.shards);
  const SampleRange part = samples_of(own, samples, plan.shards);
  batch.inputs = batch.inputs.narrow(0, part.first, part.count());
  batch.targets = batch.targets.narrow(0, part.first, part.count());
  return batch;
}

}  // namespace

Measurement measure_steps(const train::TrainOptions& options,
                          const TimedSteps& timed, const std::string& trace) {
  const auto plan = train::make_plan(options);
  train::StepRunner runner(options, plan);
  const auto batch = fixed_batch(options, plan);
  int64_t step = 0;
  for (; step < timed.warmup; ++step) {
    runner.step(batch, step, options.lr, false);
  }
  runner.restart_accounts();
  train::StepRecorder recorder(options.world, plan.devices, kTracedSteps);

  Measurement result;
  auto& times = result.step_times_s;
  for (const int64_t end = step + timed.steps; step < end; ++step) {
    recorder.begin_step();
    const Stopwatch watch;
    runner.step(batch, step, options.lr, false);
    times.push_back(watch.seconds());
  }
  auto& report = result.report;
  runner.describe(report);
  report.steps = timed.steps;
  report.step_time_s = train::summarize(times);
  report.total_time_s = std::accumulate(times.begin(), times.end(), 0.0);
  report.samples_per_s =
      static_cast<double>(options.batch_size) / report.step_time_s.median;
  runner.fill(report, report.total_time_s);
  const auto traces = recorder.gather();
  result.time_line = train::typical_step(traces);
  if (options.world.rank() == 0 && !trace.empty()) {
    train::write_chrome_trace(trace, traces);
  }
  return result;
}

}  // namespace lockstep::report
