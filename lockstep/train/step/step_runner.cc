#include "lockstep/train/step/step_runner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/link_guard.h"
#include "lockstep/device/matmul_rate.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/step/step_attachment.h"
#include "lockstep/train/step/evaluate.h"

namespace lockstep::training {
namespace {

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

/// The state of a part that is no Stateful itself.
class Adapter : public Stateful {
 public:
  Adapter(std::function<OptimizerState()> state,
          std::function<void(const OptimizerState&)> load)
      : state_(std::move(state)), load_(std::move(load)) {}

  OptimizerState state() const override { return state_(); }
  void load_state(const OptimizerState& state) override { load_(state); }

 private:
  std::function<OptimizerState()> state_;
  std::function<void(const OptimizerState&)> load_;
};

/// Returns the state of all ranks, of which each may hold a part.
OptimizerState whole_state(const StepParts& parts) {
  OptimizerState state = parts.optimizer->state_dict();
  for (auto& [name, tensor] : state) tensor = parts.engine->whole_state(tensor);
  return state;
}

void load_whole_state(const StepParts& parts, const OptimizerState& state,
                      bool is_alone) {
  parts.optimizer->load_state_dict(state);
  if (is_alone) return;
  // Each rank loaded all of a state that is split across the ranks.
  for (const auto& [name, tensor] : parts.optimizer->state_dict()) {
    release_unused(tensor);
  }
}

void set_mode(const ModuleHandle& model, bool trains) {
  model.set_modes(std::vector<bool>(model.modes().size(), trains));
}

}  // namespace

StepRunner::StepRunner(Task& task, const TrainOptions& options,
                       const ProcessGroup& world, const Plan& plan,
                       const Resume* resumed)
    : task_(task),
      options_(options),
      world_(world),
      plan_(plan),
      parts_(make_step_parts(task, options, world, plan, resumed)),
      callbacks_(task.callbacks()),
      strategy_(make_strategy({.task = task,
                               .options = options_,
                               .world = world_,
                               .plan = plan_,
                               .parts = parts_})),
      state_(world),
      accounts_(*parts_.engine, *strategy_, plan_, world_) {
  if (!options.checkpoint().save_best().empty() ||
      options.evaluation().early_stop() > 0) {
    best_ = std::make_shared<BestEvaluation>(
        options.checkpoint().save_best().empty()
            ? "loss"
            : options.checkpoint().save_best(),
        options.evaluation().early_stop());
    callbacks_.push_back(best_);
  }
  if (options.precision() == Precision::kFloat16) scale_losses();
  if (options.spikes().action() != OnSpike::kNothing) {
    spikes_.emplace(options.spikes());
  }
  list_state();
  set_mode(parts_.model, true);
  // Done now and not in the first step, so that the copies that each rank still
  // has are not counted as memory of a step.
  parts_.engine->share_parameters();
  restart_accounts();
  task_.set_engine(parts_.engine.get());
}

StepRunner::~StepRunner() { task_.set_engine(nullptr); }

void StepRunner::scale_losses() {
  if (!strategy_->can_leave_out_updates()) {
    const bool classic = is_classic(options_);
    throw InvalidArgument(
        "train",
        {.code = ErrorCode::kBadOption,
         .what = "float16 needs an update that can be left out",
         .expected = "SGD, Adam or AdamW, and a strategy other than dp-classic",
         .got = classic ? "dp-classic" : "another optimizer",
         .fix = "use --precision bf16, which needs no scaling of the loss"});
  }
  loss_scaler_.emplace();
}

double StepRunner::loss_limit() const {
  return spikes_ ? spikes_->limit() : std::numeric_limits<double>::infinity();
}

void StepRunner::list_state() {
  const auto adapt = [this](auto state, auto load) -> Stateful& {
    return *adapters_.emplace_back(std::make_unique<Adapter>(state, load));
  };
  OuterStep* const outer = strategy_->outer_step();
  state_.add(StateList::kOptimizer,
             adapt([this] { return whole_state(parts_); },
                   [this](const OptimizerState& state) {
                     load_whole_state(parts_, state, world_.size() == 1);
                   }),
             outer != nullptr ? StateOf::kRank : StateOf::kRun);
  if (outer != nullptr) state_.add(StateList::kOuterStep, *outer);
  if (parts_.power_sgd) {
    PowerSGD& hook = *parts_.power_sgd;
    state_.add(StateList::kPowerSgd,
               adapt([&hook] { return hook.state_dict(); },
                     [&hook](const OptimizerState& state) {
                       hook.load_state_dict(state);
                     }),
               StateOf::kRank);
  }
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    Callback& callback = *callbacks_[i];
    state_.add(fmt::format("{}{}.", StateList::kCallback, i),
               adapt([&callback] { return callback.state(); },
                     [&callback](const OptimizerState& state) {
                       callback.load_state(state);
                     }));
  }
  if (loss_scaler_) state_.add(StateList::kLossScaler, *loss_scaler_);
  if (spikes_) state_.add(StateList::kSpikes, *spikes_);
}

void StepRunner::roll_back(const Resume& earlier) {
  // Otherwise, the buffers of the last step would overwrite the loaded ones.
  parts_.engine->load_buffers();
  const NamedTensors model = model_state();
  if (earlier.state) earlier.state->load(model);
  broadcast(world_, model, earlier.root);
  parts_.engine->rebuild();
  state_.load(earlier, LoadCallbacks::kNo);
  spikes_->restart();
}

void StepRunner::verify_next_step() { parts_.engine->verify_next_step(); }

StepOutcome StepRunner::step(const data::Batch& batch, const Position& position,
                             int stop_signal) {
  const TraceLane lane(plan_.rank, "main");
  const TraceSpan span("step", TraceCategory::kStep, position.step);
  if (task_.take_rebuild()) parts_.engine->rebuild();
  parts_.optimizer->set_position(position);
  parts_.engine->group().set_step(position.step);
  const StepInput input{.batch = batch,
                        .position = position,
                        .loss_scale = loss_scale(),
                        .max_loss = loss_limit(),
                        .stop_signal = stop_signal};
  const StepResult result = strategy_->step(input);
  accounts_.count(strategy_->engine_batch(batch));
  StepOutcome outcome = strategy_->agree(input, result);
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

TestReport StepRunner::evaluate(data::Loader& loader,
                                const std::function<bool()>& stop) {
  const AutocastScope precision(device_type(plan_),
                                autocast_type(options_.precision()));
  return training::evaluate(*parts_.engine, task_, loader, stop, world_);
}

std::string StepRunner::state_digest() const {
  const bool has_whole_state = options_.zero() == ZeroStage::kNone;
  return digest_of(parts_.model.parameters, has_whole_state
                                                ? parts_.optimizer->state_dict()
                                                : OptimizerState{});
}

std::string StepRunner::damage_by_links() const {
  if (plan_.devices.size() < 2) return "";
  if (const std::string copy = parts_.engine->group().damaged_copy();
      !copy.empty()) {
    return copy;
  }
  const auto bad = find_bad_links(plan_.devices);
  return bad.empty() ? "" : bad.front().text();
}

double StepRunner::peak_flops_per_s() const {
  const auto& workers = parts_.engine->group().workers();
  const auto type =
      autocast_type(options_.precision()).value_or(c10::ScalarType::Float);
  std::vector<double> rates(workers.size());
  run_all(workers, [&](size_t k) {
    rates[k] = measure_matmul_rate(torch_device(plan_.devices[k]), type);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

void StepRunner::describe(RunReport& report) {
  report.lockstep = kVersion;
  report.strategy = to_string(options_.strategy());
  report.model = task_.model().at("name");
  report.precision = to_string(options_.precision());
  report.parameters = 0;
  for (const auto& [name, parameter] : parts_.model.parameters) {
    report.parameters += parameter.numel();
  }
  report.world_size = plan_.world_size;
  report.processes = world_.size();
  report.shards = plan_.shards;
  report.intra_op_threads = plan_.intra_op_threads;
  report.batch_size = options_.batch_size();
  report.tokens_of_sample = task_.tokens_of_sample();
  report.flops_of_sample = task_.flops_of_sample();
  report.split = strategy_->split(options_.batch_size());
}

void StepRunner::fill(RunReport& report, double step_seconds) const {
  report.parameter_bytes = 0;
  for (const auto& [name, parameter] : parts_.model.parameters) {
    report.parameter_bytes +=
        static_cast<int64_t>(parameter.nbytes()) * strategy_->copies();
  }
  report.optimizer_state_bytes = parts_.optimizer->state_bytes();
  const StepCheckReport checks = parts_.engine->step_checks();
  report.first_step_check = {
      .module = checks.module, .loss = checks.loss, .reason = checks.reason};

  RankReport own = accounts_.report(step_seconds);
  // Measured after the memory was read, because it allocates some.
  if (task_.flops_of_sample() > 0) own.peak_flops_per_s = peak_flops_per_s();
  const auto reports = gather_reports(world_, own);
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
  if (strategy_->ranks_share_state()) {
    report.memory_shared_bytes =
        report.parameter_bytes + report.optimizer_state_bytes;
  } else if (options_.zero() == ZeroStage::kNone) {
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

}  // namespace lockstep::training
