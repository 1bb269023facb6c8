#include "lockstep/train/step/step_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/device/matmul_rate.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/replicas/batch_loss.h"
#include "lockstep/parallel/replicas/not_finite.h"
#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/train/step/evaluate.h"
#include "lockstep/train/step/step_parts.h"

namespace lockstep::train {
namespace {

using torch::Tensor;

c10::DeviceType device_type(const Plan& plan) {
  return torch_device(plan.devices.front()).type();
}

/// Returns the factor by which the gradients of a backward exceed those of a
/// mean over the samples.
double gradient_magnitude(const StepResult& result, const Task& task) {
  const auto samples =
      static_cast<double>(std::max<int64_t>(result.samples, 1));
  return task.loss_reduction() == LossReduction::kSum ? samples
                                                      : result.weight / samples;
}

/// Returns a checksum of the bytes of all these tensors.
std::string digest_of(const NamedTensors& parameters,
                      const OptimizerState& state) {
  Checksum sum;
  for (const auto& [name, tensor] : parameters) add_elements(sum, tensor);
  for (const auto& [name, tensor] : state) add_elements(sum, tensor);
  return sum.hex();
}

/// The state of an optimizer, of which each rank may hold a part.
class WholeOptimizer : public Stateful {
 public:
  WholeOptimizer(RunOptimizer& optimizer, Engine& engine)
      : optimizer_(optimizer), engine_(engine) {}

  OptimizerState state() const override {
    OptimizerState state = optimizer_.state_dict();
    for (auto& [name, tensor] : state) tensor = engine_.whole_state(tensor);
    return state;
  }
  void load_state(const OptimizerState& state) override {
    optimizer_.load_state_dict(state);
    // Each rank loaded all of a state that is split across the ranks.
    for (const auto& [name, tensor] : optimizer_.state_dict()) {
      release_unused(tensor);
    }
  }

 private:
  RunOptimizer& optimizer_;
  Engine& engine_;
};

class PowerSgdState : public Stateful {
 public:
  explicit PowerSgdState(PowerSGD& hook) : hook_(hook) {}

  OptimizerState state() const override { return hook_.state_dict(); }
  void load_state(const OptimizerState& state) override {
    hook_.load_state_dict(state);
  }

 private:
  PowerSGD& hook_;
};

void set_mode(const ModuleHandle& model, bool trains) {
  model.set_modes(std::vector<bool>(model.modes().size(), trains));
}

}  // namespace

StepRunner::StepRunner(Task& task, const TrainOptions& options,
                       const World& world, const Plan& plan,
                       const Resume* resumed)
    : task_(task),
      options_(options),
      world_(world),
      plan_(plan),
      module_(make_module(task, options, world, plan, resumed)),
      model_(module_.read()),
      power_sgd_(make_power_sgd(options, plan, *model_)),
      engine_(make_engine(module_, options, world, plan, power_sgd_)),
      optimizer_(make_optimizer(task, options, plan,
                                [this](const Tensor& parameter) {
                                  return engine_->make_state(parameter);
                                })),
      callbacks_(task.callbacks()),
      agreement_(world, engine_->group().shards(),
                 trains_locally(options, plan), task.loss_reduction()),
      state_(world),
      samples_(plan.devices.size(), 0) {
  if (!options.checkpoint.save_best.empty() ||
      options.evaluation.early_stop > 0) {
    best_ = std::make_shared<BestEvaluation>(
        options.checkpoint.save_best.empty() ? "loss"
                                             : options.checkpoint.save_best,
        options.evaluation.early_stop);
    callbacks_.push_back(best_);
  }
  if (trains_locally(options, plan)) {
    // Each rank made or loaded the same model. Rank 0's is used on every rank.
    broadcast(world, model_->parameters, 0);
    broadcast(world, model_->buffers, 0);
    outer_.emplace(world, *model_, options.communication);
  }
  if (options.precision == Precision::kFloat16) scale_losses();
  if (options.spikes.action != OnSpike::kNothing) {
    spikes_.emplace(options.spikes);
  }
  list_state();
  set_mode(*model_, true);
  // Done now and not in the first step, so that the copies that each rank still
  // has are not counted as memory of a step.
  engine_->share_parameters();
  restart_accounts();
}

StepRunner::~StepRunner() = default;

void StepRunner::scale_losses() {
  const bool is_cut = !is_classic(options_) && optimizer_->updates_in_blocks();
  if (!is_cut) {
    throw InvalidArgument(
        "train",
        {.code = ErrorCode::kBadOption,
         .what = "float16 needs an update that can be left out",
         .expected = "SGD, Adam or AdamW, and a strategy other than dp-classic",
         .got = is_classic(options_) ? "dp-classic" : "another optimizer",
         .fix = "use --precision bf16, which needs no scaling of the loss"});
  }
  loss_scaler_.emplace();
}

double StepRunner::loss_limit() const {
  return spikes_ ? spikes_->limit() : std::numeric_limits<double>::infinity();
}

NamedTensors StepRunner::model_state() const { return state_of(*model_); }

void StepRunner::list_state() {
  const auto adapt = [this](auto adapter) -> Stateful& {
    return *adapters_.emplace_back(std::move(adapter));
  };
  const StateOf of_optimizer = is_local() ? StateOf::kRank : StateOf::kRun;
  state_.add(StateList::kOptimizer,
             adapt(std::make_unique<WholeOptimizer>(*optimizer_, *engine_)),
             of_optimizer);
  if (outer_) state_.add(StateList::kOuterStep, *outer_);
  if (power_sgd_) {
    state_.add(StateList::kPowerSgd,
               adapt(std::make_unique<PowerSgdState>(*power_sgd_)),
               StateOf::kRank);
  }
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    state_.add(fmt::format("{}{}.", StateList::kCallback, i), *callbacks_[i]);
  }
  if (loss_scaler_) state_.add(StateList::kLossScaler, *loss_scaler_);
  if (spikes_) state_.add(StateList::kSpikes, *spikes_);
}

void StepRunner::roll_back(const Resume& earlier) {
  // Otherwise, the buffers of the last step would overwrite the loaded ones.
  engine_->load_buffers();
  const NamedTensors model = model_state();
  if (earlier.state) earlier.state->load(model);
  broadcast(world_, model, earlier.root);
  engine_->rebuild();
  state_.load(earlier, LoadCallbacks::kNo);
  spikes_->restart();
}

void StepRunner::restart_accounts() {
  samples_.assign(plan_.devices.size(), 0);
  sent_before_ = world_.sent_bytes();
  phases_ = {};
  main_thread_s_.assign(plan_.devices.size(), 0);
  steps_ = 0;
  for (const auto& worker : engine_->group().workers()) worker->reset_busy();
  reset_peak_memory();
}

StepOutcome StepRunner::step(const data::Batch& batch, const Position& position,
                             int stop_signal) {
  const TraceLane lane(world_.rank(), "main");
  const TraceSpan span("step", TraceCategory::kStep, position.step);
  optimizer_->set_position(position);
  engine_->group().set_step(position.step);
  const StepResult result = is_classic(options_)
                                ? classic_step(batch)
                                : sharded_step(batch, position.step);
  StepOutcome outcome;
  if (is_local()) {
    const bool meets = is_common(position);
    if (meets && result.is_finite) outer_->step();
    outcome = agreement_.of_local_step(result, batch.total, stop_signal, meets);
  } else {
    outcome = agreement_.of_step(result, stop_signal);
  }
  outcome.repaired_shards = result.repaired_shards;
  outcome.not_finite = result.not_finite;
  if (outcome.is_empty) return outcome;  // it has no loss and no gradient
  if (spikes_ && outcome.is_finite) spikes_->add(outcome.loss());
  if (loss_scaler_ && loss_scaler_->update(outcome.is_finite,
                                           gradient_magnitude(result, task_))) {
    outcome.is_skipped = outcome.is_spike || !outcome.is_finite;
    outcome.is_finite = true;
  }
  return outcome;
}

bool StepRunner::verifies_gradients(int64_t step) const {
  const int64_t every = options_.verify.gradients_every;
  return every > 0 && (step + 1) % every == 0;
}

bool StepRunner::is_common(const Position& position) const {
  const int64_t done = position.step + 1;
  return !is_local() || done % options_.communication.local_steps == 0 ||
         done == position.total_steps;
}

ShardLoss StepRunner::loss_of(int64_t total) {
  const int64_t shards = engine_->group().shards();
  return [this, sizes = chunk_sizes(total, shards)](
             const c10::IValue& output,
             const c10::IValue& target) -> WeightedLoss {
    LossAndMetrics values = task_.loss(output, target);
    // The check of the first step also calls this function for other samples,
    // and then for the first shard again.
    const int64_t shard = current_shard();
    agreement_.metrics().replace(shard, sizes[static_cast<size_t>(shard)],
                                 values.metrics);
    return values;
  };
}

TrainStepOptions StepRunner::step_options(const data::Batch& batch) const {
  return TrainStepOptions()
      .batch(engine_batch(batch))
      .loss_reduction(task_.loss_reduction())
      .empty_batch(task_.empty_batch())
      .warn_not_finite(false);  // the run reports this itself
}

StepResult StepRunner::sharded_step(const data::Batch& batch, int64_t step) {
  const AutocastScope precision(device_type(plan_),
                                autocast_type(options_.precision));
  const StepResult result = optimizer_->train_step(
      *engine_, batch.inputs, batch.target, loss_of(engine_batch(batch)),
      step_options(batch)
          .clip_grad_norm(options_.clip_grad_norm)
          .loss_scale(loss_scale())
          .max_loss(loss_limit())
          .verify_gradients(verifies_gradients(step)));
  count(batch, engine_->group().phases());
  return result;
}

StepResult StepRunner::classic_step(const data::Batch& batch) {
  std::optional<MemoryScope> scope;
  charge_first_device(options_, plan_, scope);
  optimizer_->zero_grad();
  std::optional<AutocastScope> precision(std::in_place, device_type(plan_),
                                         autocast_type(options_.precision));
  std::optional<MemoryScope> of_output(std::in_place,
                                       plan_.devices[plan_.output_device]);
  const c10::IValue output = engine_->forward(batch.inputs);
  Stopwatch watch;
  std::optional<TraceSpan> span(std::in_place, "loss", TraceCategory::kCompute);
  const c10::IValue target =
      map_tensors(batch.target, [&](const Tensor& tensor) {
        return to_device(tensor, engine_->group().output_device());
      });
  const LossAndMetrics values = task_.loss(output, target);
  const TrainStepOptions options = step_options(batch);
  // The loss is that of the whole batch, so its weight matters only if it is 0.
  const double weight = checked_weight(values, batch.samples);
  const bool is_empty =
      weight == 0 && options.loss_reduction() == LossReduction::kMean;
  check_batch_weight({.weight = weight, .is_empty = is_empty}, options);
  StepResult result{.loss = is_empty ? 0 : values.loss.item<double>(),
                    .samples = batch.samples,
                    .weight = weight,
                    .is_empty = is_empty};
  agreement_.metrics().add(0, batch.samples, values.metrics);
  result.is_finite = std::isfinite(result.loss);
  result.is_too_high = result.is_finite && result.loss > loss_limit();
  main_thread_s_[plan_.output_device] += watch.seconds();
  span.reset();
  precision.reset();
  of_output.reset();
  if (!result.is_empty) values.loss.backward();
  if (!result.is_finite) {
    result.not_finite = first_not_finite(batch.inputs, batch.target, *model_);
  }

  PhaseTimes phases = engine_->group().phases();
  watch.restart();
  span.emplace("update", TraceCategory::kCompute);
  if (result.updates() && options_.clip_grad_norm > 0) {
    clip_grad_norm(optimizer_->parameters(), *model_, options_.clip_grad_norm,
                   result);
  }
  if (result.updates()) optimizer_->step();
  phases.update_s = watch.seconds();
  main_thread_s_.front() += phases.update_s;
  count(batch, phases);
  return result;
}

TestReport StepRunner::evaluate(data::Loader& loader,
                                const std::function<bool()>& stop) {
  const AutocastScope precision(device_type(plan_),
                                autocast_type(options_.precision));
  return train::evaluate(*engine_, task_, loader, stop, world_);
}

std::string StepRunner::state_digest() const {
  const bool has_whole_state = options_.zero == ZeroStage::kNone;
  return digest_of(model_->parameters, has_whole_state
                                           ? optimizer_->state_dict()
                                           : OptimizerState{});
}

std::string StepRunner::damage_by_links() const {
  if (plan_.devices.size() < 2) return "";
  if (const std::string copy = engine_->group().damaged_copy(); !copy.empty()) {
    return copy;
  }
  const auto bad = find_bad_links(plan_.devices);
  return bad.empty() ? "" : bad.front().text();
}

void StepRunner::count(const data::Batch& batch, const PhaseTimes& phases) {
  const auto split = engine_->group().split(engine_batch(batch));
  const size_t first =
      static_cast<size_t>(engine_->group().rank()) * samples_.size();
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

int64_t StepRunner::engine_batch(const data::Batch& batch) const {
  return is_local() ? batch.samples : batch.total;
}

int64_t StepRunner::copies() const {
  if (is_local()) return world_.size();
  if (world_.size() > 1) {
    return world_.can_share_memory() ? 1 : world_.size();
  }
  if (plan_.devices.front().is_cpu() && !is_classic(options_)) return 1;
  return static_cast<int64_t>(plan_.devices.size());
}

std::vector<DeviceUse> StepRunner::device_use() const {
  std::vector<DeviceUse> use;
  for (size_t k = 0; k < plan_.devices.size(); ++k) {
    const MemoryStats memory = memory_stats(plan_.devices[k]);
    // Memory copied for other ranks is not charged to any device.
    const int64_t copied = k == 0 ? engine_->copy_bytes() : 0;
    use.push_back(
        {.name = plan_.devices[k].name(),
         .busy_s = engine_->group().workers()[k]->busy_s() + main_thread_s_[k],
         .memory_bytes = memory.live_bytes + memory.cached_bytes + copied,
         .memory_peak_bytes = memory.peak_bytes + copied});
  }
  return use;
}

RankReport StepRunner::rank_report(double step_seconds) const {
  const double steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  RankReport report;
  report.pid = ::getpid();
  report.sent_bytes = world_.sent_bytes() - sent_before_;
  report.host_memory_bytes = host_memory_stats().peak_bytes;
  report.phases_s = {.scatter = phases_.scatter_s / steps,
                     .replicate = phases_.replicate_s / steps,
                     .forward = phases_.forward_s / steps,
                     .gather = phases_.gather_s / steps,
                     .backward = phases_.backward_s / steps,
                     .reduce = phases_.reduce_s / steps,
                     .update = phases_.update_s / steps};
  const auto use = device_use();
  for (size_t k = 0; k < use.size(); ++k) {
    report.devices.push_back(
        {.name = use[k].name,
         .samples = samples_[k],
         .busy_fraction =
             step_seconds > 0 ? std::min(use[k].busy_s / step_seconds, 1.0) : 0,
         .memory_peak_bytes = use[k].memory_peak_bytes,
         .gradient_copy_bytes = k == 0 ? engine_->copy_bytes() : 0});
  }
  // Measured after the memory was read, because it allocates some.
  if (task_.flops_of_sample() > 0) report.peak_flops_per_s = peak_flops_per_s();
  return report;
}

double StepRunner::peak_flops_per_s() const {
  const auto& workers = engine_->group().workers();
  const auto type =
      autocast_type(options_.precision).value_or(c10::ScalarType::Float);
  std::vector<double> rates(workers.size());
  run_all(workers, [&](size_t k) {
    rates[k] = measure_matmul_rate(torch_device(plan_.devices[k]), type);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

void StepRunner::describe(RunReport& report) {
  report.lockstep = kVersion;
  report.strategy = to_string(options_.strategy);
  report.model = task_.model().at("name");
  report.precision = to_string(options_.precision);
  report.parameters = 0;
  for (const auto& [name, parameter] : model_->parameters) {
    report.parameters += parameter.numel();
  }
  report.world_size = plan_.world_size;
  report.processes = world_.size();
  report.shards = plan_.shards;
  report.intra_op_threads = plan_.intra_op_threads;
  report.batch_size = options_.batch_size;
  report.tokens_of_sample = task_.tokens_of_sample();
  report.flops_of_sample = task_.flops_of_sample();
  report.split = is_local() ? chunk_sizes(options_.batch_size, world_.size())
                            : engine_->group().split(options_.batch_size);
}

void StepRunner::fill(RunReport& report, double step_seconds) const {
  report.parameter_bytes = 0;
  for (const auto& [name, parameter] : model_->parameters) {
    report.parameter_bytes +=
        static_cast<int64_t>(parameter.nbytes()) * copies();
  }
  report.optimizer_state_bytes = optimizer_->state_bytes();
  const FirstStep& first = engine_->group().first_step();
  report.first_step_check = {.module = to_string(first.module()),
                             .loss = to_string(first.loss()),
                             .reason = first.reason()};

  const auto reports = gather_reports(world_, rank_report(step_seconds));
  // The ranks wait for each other in different phases, so the phases of several
  // ranks would not add up to a step.
  report.phases_s = reports.front().phases_s;
  report.peak_flops_per_s = 0;
  for (const auto& rank : reports) {
    report.peak_flops_per_s += rank.peak_flops_per_s;
  }
  if (world_.size() == 1) {
    report.devices = reports[0].devices;
    report.memory_shared_bytes = reports[0].host_memory_bytes;
    return;
  }
  const bool is_shared = world_.can_share_memory() && !is_local();
  if (is_shared) {
    report.memory_shared_bytes =
        report.parameter_bytes + report.optimizer_state_bytes;
  } else if (options_.zero == ZeroStage::kNone) {
    report.optimizer_state_bytes *= world_.size();
  }
  std::set<int64_t> seen;
  for (const auto& rank : reports) {
    report.sent_bytes += rank.sent_bytes;
    for (DeviceReport device : rank.devices) {
      // If ranks are threads, the first rank stands for the process.
      if (seen.insert(rank.pid).second) {
        device.memory_peak_bytes += rank.host_memory_bytes;
      }
      report.devices.push_back(device);
    }
  }
}

}  // namespace lockstep::train
