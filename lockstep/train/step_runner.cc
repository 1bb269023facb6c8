#include "lockstep/train/step_runner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <unistd.h>

#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/memory.h"
#include "lockstep/models/finite.h"
#include "lockstep/optim/state.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/train/memory_format.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {
namespace {

using torch::Tensor;

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits, targets);
}

bool is_classic(const TrainOptions& options) {
  return options.strategy == Strategy::kDataParallelClassic;
}

// The textbook keeps model and optimizer on device 0; otherwise they are held
// once for all slices, on the host's account.
void charge_first_device(const TrainOptions& options, const Plan& plan,
                         std::optional<MemoryScope>& scope) {
  if (is_classic(options)) scope.emplace(plan.devices.front());
}

std::shared_ptr<models::Model> make_model(const TrainOptions& options,
                                          const Plan& plan,
                                          const Resume* resumed) {
  std::optional<MemoryScope> scope;
  charge_first_device(options, plan, scope);
  // Ranks that are threads share LibTorch's default generator.
  static std::mutex generator_is_in_use;
  const std::lock_guard lock(generator_is_in_use);
  torch::manual_seed(options.seed);
  auto model = make_laid_out(options.model, plan.channels_last);
  const std::string& from = options.init_from;
  if (resumed != nullptr) {
    if (resumed->state) resumed->state->load(*model);
  } else if (!from.empty()) {
    if (std::filesystem::is_directory(from)) {
      load_checkpoint(find_checkpoint(from), *model);
    } else {
      load(*model, from);
    }
  }
  model->to(torch_device(plan.devices.front()));
  // Rank 0's is going to be everyone's.
  if (resumed != nullptr && resumed->root != 0) {
    broadcast(options.world, state_dict(*model), resumed->root);
  }
  return model;
}

std::unique_ptr<optim::Optimizer> make_optimizer(
    const TrainOptions& options, const Plan& plan, const models::Model& model,
    const optim::StateFactory& make_state) {
  std::optional<MemoryScope> scope;
  charge_first_device(options, plan, scope);
  if (options.optimizer == OptimizerKind::kAdamW) {
    return optim::adamw(model.parameters(),
                        {.lr = options.lr,
                         .weight_decay = options.weight_decay,
                         .make_state = make_state});
  }
  return optim::sgd(model.parameters(), {.lr = options.lr,
                                         .momentum = options.momentum,
                                         .weight_decay = options.weight_decay,
                                         .nesterov = options.nesterov,
                                         .make_state = make_state});
}

void tell_agent(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return control::enter(control::Phase::kForward);
    case StepPhase::kBackward:
      return control::enter(control::Phase::kBackward);
    case StepPhase::kAllReduce:
      return control::enter(control::Phase::kAllReduce);
    case StepPhase::kUpdate:
      return control::enter(control::Phase::kUpdate);
  }
}

DataParallelOptions parallel_options(const TrainOptions& options,
                                     const Plan& plan) {
  return DataParallelOptions()
      .replication(is_classic(options) ? Replication::kEveryForward
                                       : Replication::kResident)
      .world(options.world)
      .shards(plan.shards)
      .intra_op_threads(plan.intra_op_threads)
      .seed(options.seed)
      .on_phase(tell_agent);
}

}  // namespace

StepRunner::StepRunner(const TrainOptions& options, const Plan& plan,
                       const Resume* resumed)
    : options_(options),
      plan_(plan),
      model_(make_model(options, plan, resumed)),
      parallel_(model_, replica_factory(options.model, plan.channels_last),
                plan.devices, parallel_options(options, plan)),
      optimizer_(make_optimizer(options, plan, *model_,
                                [this](const Tensor& parameter) {
                                  return parallel_->make_state(parameter);
                                })),
      samples_(plan.devices.size(), 0) {
  parallel_->train(true);
  // Not at the first step: what each rank has now is no memory of a step.
  parallel_->share_parameters();
  restart_accounts();
}

void StepRunner::load_optimizer(const Resume& resumed) {
  if (resumed.state) resumed.state->load(*optimizer_);
  if (options_.world.size() == 1) return;
  auto state = optimizer_->state_dict();
  for (auto& [name, tensor] : state) {
    Tensor message = tensor.contiguous();
    options_.world.broadcast(message, resumed.root);
    state[name] = message;
  }
  optimizer_->load_state_dict(state);
}

void StepRunner::restart_accounts() {
  samples_.assign(plan_.devices.size(), 0);
  phases_ = {};
  output_device_s_ = 0;
  steps_ = 0;
  for (const auto& worker : parallel_->workers()) worker->reset_busy();
  reset_peak_memory();
}

StepOutcome StepRunner::step(const data::Batch& batch, int64_t step, double lr,
                             int stop_signal) {
  const TraceLane lane(options_.world.rank(), "main");
  const TraceSpan span("step", TraceCategory::kStep, step);
  optimizer_->set_lr(lr);
  parallel_->set_step(step);
  StepOutcome outcome =
      is_classic(options_) ? classic_step(batch) : sharded_step(batch);
  agree(outcome, stop_signal);
  return outcome;
}

void StepRunner::agree(StepOutcome& outcome, int stop_signal) const {
  outcome.stop_signal = stop_signal;
  if (options_.world.size() == 1) return;
  const AllReduceSpan span(options_.world.rank(), "outcome");
  // Behind the sum, how many ranks got each signal.
  constexpr int kSignals = kRegroupSignal + 1;
  Tensor sums = torch::zeros({1 + kSignals}, torch::kInt64);
  auto* values = sums.data_ptr<int64_t>();
  values[0] = outcome.correct;
  if (stop_signal > 0 && stop_signal < kSignals) values[1 + stop_signal] = 1;
  options_.world.all_reduce(sums);
  outcome.correct = values[0];
  // A person's SIGINT has the lowest number.
  const auto* first = std::find_if(values + 1, values + 1 + kSignals,
                                   [](int64_t ranks) { return ranks > 0; });
  if (first != values + 1 + kSignals) {
    outcome.stop_signal = static_cast<int>(first - values) - 1;
  }
}

StepOutcome StepRunner::sharded_step(const data::Batch& batch) {
  std::atomic<int64_t> correct = 0;
  const auto loss_fn = [&](const Tensor& logits, const Tensor& targets) {
    correct += count_correct(logits, targets);
    return cross_entropy(logits, targets);
  };
  const StepResult result =
      parallel_->train_step(batch.inputs, batch.targets, loss_fn, *optimizer_,
                            TrainStepOptions()
                                .clip_grad_norm(options_.clip_grad_norm)
                                .batch(batch.total));
  count(batch, parallel_->phase_times());
  return {.loss = result.loss,
          .correct = correct,
          .samples = result.samples,
          .is_finite = result.is_finite};
}

StepOutcome StepRunner::classic_step(const data::Batch& batch) {
  std::optional<MemoryScope> scope;
  charge_first_device(options_, plan_, scope);
  optimizer_->zero_grad();
  const Tensor logits = parallel_->forward(batch.inputs);
  Stopwatch watch;
  std::optional<TraceSpan> span(std::in_place, "loss", TraceCategory::kCompute);
  const Tensor targets = batch.targets.to(logits.device());
  const Tensor loss = cross_entropy(logits, targets);
  StepOutcome outcome{.loss = loss.item<double>(),
                      .correct = count_correct(logits, targets),
                      .samples = targets.size(0)};
  outcome.is_finite = std::isfinite(outcome.loss);
  output_device_s_ += watch.seconds();
  span.reset();
  loss.backward();

  PhaseTimes phases = parallel_->phase_times();
  watch.restart();
  span.emplace("update", TraceCategory::kCompute);
  if (outcome.is_finite && options_.clip_grad_norm > 0) {
    outcome.is_finite = std::isfinite(torch::nn::utils::clip_grad_norm_(
        optimizer_->parameters(), options_.clip_grad_norm));
  }
  if (outcome.is_finite) optimizer_->step();
  phases.update_s = watch.seconds();
  output_device_s_ += phases.update_s;
  count(batch, phases);
  return outcome;
}

std::string StepRunner::first_not_finite(const data::Batch& batch) {
  // A step with an optimizer reduces into blocks and leaves no .grad, so the
  // gradients are computed again, from the same random numbers.
  optimizer_->zero_grad();
  parallel_->train_step(batch.inputs, batch.targets, cross_entropy,
                        TrainStepOptions().batch(batch.total));
  const std::string found = models::first_not_finite(batch.inputs, *model_);
  optimizer_->zero_grad();
  return found;
}

void StepRunner::count(const data::Batch& batch, const PhaseTimes& phases) {
  const auto split = parallel_->split(batch.total);
  const size_t first =
      static_cast<size_t>(options_.world.rank()) * samples_.size();
  for (size_t k = 0; k < samples_.size() && first + k < split.size(); ++k) {
    samples_[k] += split[first + k];
  }
  phases_.scatter_s += phases.scatter_s;
  phases_.replicate_s += phases.replicate_s;
  phases_.forward_s += phases.forward_s;
  phases_.gather_s += phases.gather_s;
  phases_.backward_s += phases.backward_s;
  phases_.reduce_s += phases.reduce_s;
  phases_.update_s += phases.update_s;
  ++steps_;
}

int64_t StepRunner::copies() const {
  if (options_.world.size() > 1) {
    return options_.world.can_share_memory() ? 1 : options_.world.size();
  }
  if (plan_.devices.front().is_cpu() && !is_classic(options_)) return 1;
  return static_cast<int64_t>(plan_.devices.size());
}

RankReport StepRunner::rank_report(double step_seconds) const {
  const double steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  RankReport report;
  report.pid = ::getpid();
  report.host_memory_bytes = host_memory_stats().peak_bytes;
  report.phases_s = {.scatter = phases_.scatter_s / steps,
                     .replicate = phases_.replicate_s / steps,
                     .forward = phases_.forward_s / steps,
                     .gather = phases_.gather_s / steps,
                     .backward = phases_.backward_s / steps,
                     .reduce = phases_.reduce_s / steps,
                     .update = phases_.update_s / steps};
  const int64_t copied = parallel_->copy_bytes();
  for (size_t k = 0; k < plan_.devices.size(); ++k) {
    double busy_s = parallel_->workers()[k]->busy_s();
    if (k == 0) busy_s += output_device_s_;
    report.devices.push_back(
        {.name = plan_.devices[k].name(),
         .samples = samples_[k],
         .busy_fraction =
             step_seconds > 0 ? std::min(busy_s / step_seconds, 1.0) : 0,
         .memory_peak_bytes =
             memory_stats(plan_.devices[k]).peak_bytes + (k == 0 ? copied : 0),
         .gradient_copy_bytes = k == 0 ? copied : 0});
  }
  return report;
}

void StepRunner::describe(RunReport& report) {
  report.lockstep = kVersion;
  report.strategy = to_string(options_.strategy);
  report.model = options_.model.name;
  report.parameters = models::count_parameters(*model_);
  report.world_size = plan_.world_size;
  report.processes = options_.world.size();
  report.shards = plan_.shards;
  report.intra_op_threads = plan_.intra_op_threads;
  report.batch_size = options_.batch_size;
  report.split = parallel_->split(options_.batch_size);
}

void StepRunner::fill(RunReport& report, double step_seconds) const {
  report.parameter_bytes = optim::bytes_of(model_->parameters()) * copies();
  report.optimizer_state_bytes = optimizer_->state_bytes();

  const auto reports =
      gather_reports(options_.world, rank_report(step_seconds));
  report.phases_s = slowest(reports);
  if (options_.world.size() == 1) {
    report.devices = reports[0].devices;
    report.memory_shared_bytes = reports[0].host_memory_bytes;
    return;
  }
  const bool is_shared = options_.world.can_share_memory();
  if (is_shared) {
    report.memory_shared_bytes =
        report.parameter_bytes + report.optimizer_state_bytes;
  } else {
    report.optimizer_state_bytes *= options_.world.size();
  }
  std::set<int64_t> seen;
  for (const auto& rank : reports) {
    for (DeviceReport device : rank.devices) {
      // Of ranks that are threads the first stands for the process.
      if (seen.insert(rank.pid).second) {
        device.memory_peak_bytes += rank.host_memory_bytes;
      }
      report.devices.push_back(device);
    }
  }
}

}  // namespace lockstep::train
