#include "lockstep/parallel/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/bf16/cast_weights.h"
#include "lockstep/parallel/check/step_check.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/parameter_writes.h"
#include "lockstep/parallel/reduction/local_gradients.h"
#include "lockstep/parallel/step/evaluate.h"
#include "lockstep/parallel/step/not_finite_report.h"
#include "lockstep/parallel/step/parallel_forward.h"
#include "lockstep/parallel/step/sharded_update.h"
#include "lockstep/parallel/step/train_step.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Returns tensors without data, laid out like `parameters`.
std::vector<Tensor> layout_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> layout;
  for (const Tensor& parameter : parameters) {
    layout.push_back(torch::empty_strided(
        parameter.sizes(), parameter.strides(),
        torch::dtype(parameter.scalar_type()).device(torch::kMeta)));
  }
  return layout;
}

bool is_laid_out_as(const std::vector<Tensor>& layout,
                    const std::vector<Tensor>& parameters) {
  return std::equal(layout.begin(), layout.end(), parameters.begin(),
                    parameters.end(), [](const Tensor& a, const Tensor& b) {
                      return a.scalar_type() == b.scalar_type() &&
                             a.sizes() == b.sizes() &&
                             a.strides() == b.strides();
                    });
}

/// Returns the device on which a rank of DistributedDataParallel computes: its
/// module's GPU, or its part of the host's cores.
Device device_of_rank(const ProcessGroup& world, const ModuleHandle& module,
                      const DistributedDataParallelOptions& options) {
  if (options.device()) return *options.device();
  for (const auto& [name, parameter] : module.parameters) {
    if (parameter.is_cpu()) break;
    return {.type = parameter.device().type(),
            .index = parameter.device().index(),
            .slices = 0};
  }
  return {.type = c10::kCPU,
          .index = world.local_rank(),
          .slices = world.local_size()};
}

DataParallelOptions step_options(
    const ProcessGroup& world, const DistributedDataParallelOptions& options) {
  return DataParallelOptions()
      .process_group(world)
      .dim(options.dim())
      .zero(options.zero())
      .shards(options.shards())
      .intra_op_threads(options.intra_op_threads())
      .seed(options.seed())
      .verify(options.verify())
      .verify_ranks(options.verify_ranks())
      .verify_memory(options.verify_memory());
}

/// Returns the number of samples of the first tensor in `inputs` that is not
/// shared(), or 1 if there is no such tensor.
int64_t samples_of(const std::vector<IValue>& inputs, int64_t dim) {
  for (const auto& [tensor, path, is_shared] :
       tensors_in(c10::ivalue::Tuple::create(inputs))) {
    if (is_shared) continue;
    const bool has_dim = -tensor.dim() <= dim && dim < tensor.dim();
    return has_dim ? tensor.size(dim) : 1;
  }
  return 1;
}

[[noreturn]] void refuse_step(const char* what, const char* fix) {
  throw InvalidArgument(
      "ddp", {.code = ErrorCode::kBadOption, .what = what, .fix = fix});
}

void check_needs_no_closure(const torch::optim::Optimizer& optimizer) {
  if (!dynamic_cast<const torch::optim::LBFGS*>(&optimizer)) return;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadOptimizer,
       .what = "LBFGS computes the loss several times in each step, and "
               "train_step() computes it once",
       .expected = "an optimizer whose step() needs no closure",
       .got = "torch::optim::LBFGS",
       .fix = "call optimizer.step([&] { optimizer.zero_grad(); auto l = "
              "loss(model->forward(x), y); l.backward(); return l; })"});
}

// Two runs must have the same bits. docs/decisions/0045
void make_deterministic(const std::vector<Device>& devices) {
  const bool has_gpu =
      std::any_of(devices.begin(), devices.end(),
                  [](const Device& device) { return device.is_cuda(); });
  if (has_gpu) cuda::fix_order_of_sums();
}

/// Returns a function for TrainStep::add() that adds what no_sync() left in
/// .grad to this rank's gradients, with the weight that `average` gives it.
AddGradients add_local(LocalGradients& local, const ReplicaGroup& group,
                       GradientAverage average) {
  return [&local, &group, average](const StepBatch& batch, double factor,
                                   std::vector<PartialSum>& sums) {
    if (sums.empty()) {
      throw ParallelError(
          "ddp", {.code = ErrorCode::kSamplesDiffer,
                  .what = fmt::format("rank {} has no samples in the step that "
                                      "ends no_sync()",
                                      group.rank()),
                  .expected = "a batch with samples for every rank",
                  .fix = "leave out such a batch (drop_last)"});
    }
    const auto samples =
        static_cast<double>(std::max<int64_t>(batch.samples, 1));
    const double weight = average == GradientAverage::kSamples
                              ? static_cast<double>(batch.own_samples) / samples
                              : 1.0 / group.options().process_group().size();
    local.add_shares(group.parameters(), weight, factor, sums.back().gradients);
  };
}

}  // namespace

NoSync::NoSync(std::shared_ptr<LocalGradients> gradients)
    : gradients_(std::move(gradients)), was_synced_(gradients_->is_synced()) {
  gradients_->set_synced(false);
}

NoSync::~NoSync() { gradients_->set_synced(was_synced_); }

Engine::Engine(ModuleSource module, std::vector<Device> devices,
               DataParallelOptions options)
    : module_(std::move(module)),
      world_(options.process_group()),
      devices_(std::move(devices)),
      options_(std::move(options)),
      ddp_options_(DistributedDataParallelOptions().dim(options_.dim())),
      local_gradients_(std::make_shared<LocalGradients>(world_.size())) {
  make_deterministic(devices_);
  attach();
  group();
  if (world_.size() > 1) follow_layout();
}

Engine::Engine(ModuleSource module, const ProcessGroup& world,
               const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      world_(world),
      options_(step_options(world, options)),
      ddp_options_(options),
      local_gradients_(std::make_shared<LocalGradients>(world_.size())) {
  const ModuleHandle handle = module_.read();
  note_parameters(handle);
  devices_ = {device_of_rank(world_, handle, options)};
  make_deterministic(devices_);
  attach();
  if (cuts_state()) {
    follow_layout();
  } else {
    reducer();
  }
}

Engine::~Engine() {
  // LibTorch's thread may still hold the reducer, and would destroy it without
  // an exception.
  if (reducer_ && std::uncaught_exceptions() > 0) reducer_->leave();
}

void Engine::attach() {
  const bool warns = world_.rank() == 0;
  attachments_.push_back(std::make_unique<CastWeights>());
  attachments_.push_back(std::make_unique<StepCheck>(options_.verify(), warns));
  local_attachments_.push_back(
      std::make_unique<StepCheck>(options_.verify(), warns));
}

void Engine::note_written() const {
  for (const auto& each : attachments_) each->on_written();
}

void Engine::note_rebuild() const {
  for (const auto& each : attachments_) each->on_rebuild();
}

void Engine::verify_next_step() {
  for (const auto& each : attachments_) each->verify_next_step();
  for (const auto& each : local_attachments_) each->verify_next_step();
}

StepCheckReport Engine::step_checks() const {
  StepCheckReport report;
  for (const auto& each : attachments_) each->describe(report);
  return report;
}

ReplicaGroup& Engine::group() const {
  if (!group_) {
    group_ = std::make_shared<ReplicaGroup>(module_, devices_, options_);
  }
  return *group_;
}

bool Engine::cuts_state() const {
  return options_.zero() != ZeroStage::kNone && world_.size() > 1 &&
         !world_.can_share_memory();
}

ddp::Reducer& Engine::reducer() const {
  if (cuts_state()) {
    refuse_step(
        "forward() and backward() with ZeRO, which cuts the optimizer's state "
        "over the ranks",
        "call train_step() with the optimizer, or leave out zero()");
  }
  if (!reducer_) {
    reducer_ = ddp::Reducer::create(world_, module_.read(), ddp_options_,
                                    local_gradients_);
    if (hook_) reducer_->set_hook(hook_);
  }
  return *reducer_;
}

bool Engine::is_local() const {
  return !local_gradients_->is_synced() && world_.size() > 1;
}

// Loops written by the user.

const Device& Engine::output_device() const { return group().output_device(); }

IValue Engine::forward(const std::vector<IValue>& inputs) {
  follow_casts();
  return parallel_forward(group_, inputs, attachments_);
}

IValue Engine::watch(const std::vector<IValue>& inputs,
                     const std::function<IValue()>& forward) {
  follow_casts();
  if (!torch::GradMode::is_enabled()) return run_module(forward);
  const int64_t samples = samples_of(inputs, ddp_options_.dim());
  // If the ranks still shared the parameters, each rank would update them.
  unshare_parameters();
  ddp::Reducer& reducer = this->reducer();
  const uint64_t begin = reducer.begin_forward();
  const IValue output = run_module(forward);
  if (exchange_) exchange_->forget_buffers();
  if (!has_watched_) check_parameters_are_known();
  has_watched_ = true;
  reducer.end_forward(begin, samples);
  return map_tensors(output, [&](const Tensor& tensor) {
    return reducer.watch(tensor, samples);
  });
}

void Engine::follow_casts() {
  if (has_autocast() && group_) group_->follow_module();
  cast_watch_.follow(group_ ? group_->parameters() : weights_);
}

IValue Engine::run_module(const std::function<IValue()>& forward) const {
  const ParameterWrites writes(module_parameters_);
  IValue output = forward();
  if (const auto p = writes.first()) {
    refuse_written_parameter(parameter_names_[*p], world_.size());
  }
  return output;
}

void Engine::check_parameters_are_known() const {
  if (module_parameters_.empty()) return;
  const ModuleHandle now = module_.read();
  for (const auto& item : now.parameters) {
    const bool is_known = std::any_of(
        module_parameters_.begin(), module_parameters_.end(),
        [&](const Tensor& known) { return known.is_same(item.second); });
    if (is_known) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kModuleChanged,
         .what = "parameter '" + item.first +
                 "' was registered after the module was wrapped (by the first "
                 "forward(), perhaps), so its gradient would not be exchanged",
         .fix = "register it in the constructor, or call forward() once before "
                "you wrap the module and make the optimizer after that"});
  }
}

void Engine::note_parameters(const ModuleHandle& module) {
  module_parameters_.clear();
  parameter_names_.clear();
  weights_.clear();
  for (const auto& item : module.parameters) weights_.push_back(item.second);
  // With one rank, the module may change its parameters, as without a wrapper.
  if (world_.size() == 1) return;
  for (const auto& [name, parameter] : module.parameters) {
    module_parameters_.push_back(parameter);
    parameter_names_.push_back(name);
  }
}

void Engine::join(const std::function<void()>& steps,
                  const JoinOptions& options) {
  if (world_.size() == 1 && !reducer_) return steps();
  reducer().join(steps, options);
}

std::vector<std::vector<size_t>> Engine::buckets() const {
  return reducer().assignment();
}

// Steps made by the engine.

void Engine::check_can_step(bool updates) const {
  const struct {
    bool is_refused;
    const char* what;
    const char* fix;
  } rules[] = {
      {updates && is_local(), "train_step() with an optimizer under no_sync()",
       "under no_sync() leave the optimizer out; the next train_step() with "
       "one updates with all gradients"},
      {reducer_ && reducer_->is_joining(), "train_step() within join()",
       "call forward(), backward() and the optimizer's step(), or give each "
       "rank as many steps"},
      {!ddp_options_.parameters_to_ignore().empty(),
       "train_step() with parameters_to_ignore",
       "call forward(), backward() and the optimizer's step()"},
      {!ddp_options_.broadcast_buffers(),
       "train_step() with broadcast_buffers(false)",
       "train_step() gives every rank rank 0's buffers; else call forward() "
       "and backward()"},
  };
  for (const auto& rule : rules) {
    if (rule.is_refused) refuse_step(rule.what, rule.fix);
  }
}

void Engine::follow_layout() {
  group().follow_module();
  if (exchange_ && exchange_build_ == group_->build() &&
      is_laid_out_as(layout_, group_->parameters())) {
    return;
  }
  // After a cast or a change of shape, the ranks send tensors of another
  // layout.
  exchange_.reset();
  exchange_ =
      make_rank_exchange(world_, group_->original(), group_->parameters(),
                         group_->shards(), devices_, options_.zero(), hook_);
  if (options_.verify_memory()) exchange_->common_state().compare_all();
  exchange_build_ = group_->build();
  layout_ = layout_of(group_->parameters());
  note_rebuild();
}

void Engine::begin_step(optim::BlockOptimizer* optimizer) {
  if (world_.size() == 1) return;
  follow_layout();
  if (exchange_->begin_step(optimizer != nullptr)) note_written();
  if (!optimizer) {
    if (exchange_->shares_memory()) release_optimizers();
    return;
  }
  if (world_.can_share_memory() && !exchange_->shares_memory() &&
      optimizer->has_shared_state()) {
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadOptimizer,
                .what = "the optimizer's state lies in memory that all ranks "
                        "share, and with a comm hook each rank updates all of "
                        "it",
                .fix = "call register_comm_hook() first, then make the "
                       "optimizer"});
  }
}

StepResult Engine::train_step(const std::vector<IValue>& inputs,
                              const IValue& target, const ShardLoss& loss,
                              StepOptimizer optimizer,
                              const TrainStepOptions& options) {
  check_can_step(optimizer.whole || optimizer.blocks);
  if (is_local()) return local_step(inputs, target, loss, options);
  if (optimizer.whole) optimizer.blocks = adopt(*optimizer.whole);
  begin_step(optimizer.blocks);
  const LocalGradients::StepScope scope(*local_gradients_);
  TrainStep step(group(), exchange_.get(), attachments_, options,
                 optimizer.blocks);
  if (local_gradients_->has_any()) {
    step.add(add_local(*local_gradients_, *group_, ddp_options_.average()));
  }
  StepResult result = step.run(inputs, target, loss);
  if (optimizer.whole && !optimizer.blocks) {
    update_whole(*optimizer.whole, options, result);
  }
  return result;
}

StepResult Engine::local_step(const std::vector<IValue>& inputs,
                              const IValue& target, const ShardLoss& loss,
                              const TrainStepOptions& options) {
  begin_step(nullptr);
  const LocalGradients::StepScope scope(*local_gradients_);
  const double factor = local_gradients_->begin_step(group_->parameters());
  const StepResult result =
      TrainStep(*group_, /*exchange=*/nullptr, local_attachments_, options,
                /*optimizer=*/nullptr)
          .multiply_gradients(factor)
          .run(inputs, target, loss);
  local_gradients_->end_step(group_->parameters());
  return result;
}

optim::BlockOptimizer* Engine::adopt(torch::optim::Optimizer& optimizer) {
  check_needs_no_closure(optimizer);
  // Only a few optimizers are in use at a time, such as the two of a GAN. A new
  // one may reuse the address of a deleted one.
  constexpr size_t kMax = 8;
  std::erase_if(adopted_, [&](const auto& known) {
    return known->is_at(optimizer) && !known->is_for(optimizer);
  });
  auto known = std::ranges::find_if(
      adopted_, [&](const auto& each) { return each->is_at(optimizer); });
  if (known == adopted_.end()) {
    auto made = optim::BlockOptimizer::adopt(
        optimizer,
        [this](const Tensor& parameter) { return make_state(parameter); });
    if (!made) return nullptr;
    if (adopted_.size() == kMax) adopted_.erase(adopted_.begin());
    adopted_.push_back(std::move(made));
    known = std::prev(adopted_.end());
  }
  place_state(**known);
  (*known)->follow();
  return known->get();
}

void Engine::update_whole(torch::optim::Optimizer& optimizer,
                          const TrainStepOptions& options, StepResult& result) {
  StepClock& clock = group_->clock();
  clock.enter(StepPhase::kUpdate);
  const auto span = clock.time(StepClock::Phase::kUpdate);
  if (result.updates() && options.clip_grad_norm() > 0) {
    clip_grad_norm(optim::parameters_of(optimizer), group_->original(),
                   options.clip_grad_norm(), result);
    if (!result.is_finite) {
      warn_not_finite(*group_, options, result, world_.rank() == 0);
    }
  }
  if (result.updates()) optimizer.step();
  optimizer.zero_grad();
  group_->drop_gradients();
}

void Engine::check_has(const std::vector<Tensor>& optimizer_parameters) const {
  std::vector<Tensor> parameters;
  for (const auto& item : module_.read().parameters) {
    parameters.push_back(item.second);
  }
  positions_in(parameters, optimizer_parameters);
}

void Engine::update(optim::BlockOptimizer& optimizer) {
  // If the ranks still shared the parameters, each rank would update them.
  unshare_parameters();
  optimizer.follow();
  // Without replicas, the caller's threads are all threads of this rank.
  if (!group_) return optimizer.step();
  group_->follow_module();
  ShardedUpdate update(*group_, /*exchange=*/nullptr);
  const std::vector<size_t> positions = update.positions_in(optimizer);
  std::vector<Tensor> gradients(group_->parameters().size());
  {
    const torch::NoGradGuard no_grad;
    for (const size_t p : positions) {
      const Tensor& parameter = group_->parameters()[p];
      if (!parameter.grad().defined()) continue;
      gradients[p] = optim::laid_out_like(parameter.grad(), parameter);
    }
  }
  StepResult result;
  update.update_whole(gradients, positions, optimizer, {}, result);
  note_written();
}

std::vector<int64_t> Engine::evaluate(const std::vector<IValue>& inputs,
                                      const IValue& target, int64_t batch,
                                      const ShardVisit& visit) {
  if (exchange_) group().follow_module();
  load_buffers();
  follow_casts();
  return lockstep::evaluate(group(), inputs, target, batch, visit);
}

// For both kinds of steps.

int64_t Engine::shards() const { return group().shards(); }

std::vector<int64_t> Engine::split(int64_t batch) const {
  return group().split(batch);
}

PhaseTimes Engine::phase_times() const { return group().clock().times(); }

const std::vector<std::unique_ptr<Worker>>& Engine::workers() const {
  return group().workers();
}

void Engine::set_step(int64_t step) { group().set_step(step); }

void Engine::register_comm_hook(const CommHook& hook) {
  if (hook_) {
    throw InvalidArgument("ddp", {.code = ErrorCode::kMisuse,
                                  .what = "there is a comm hook already",
                                  .fix = "register one, once"});
  }
  hook_ = hook;
  if (reducer_) reducer_->set_hook(hook);
  // With a hook, each rank has its own parameters and its own optimizer state.
  // Both are recreated from what the ranks have shared until now.
  load_buffers();
  unshare_parameters();
  exchange_.reset();
  note_rebuild();
  adopted_.clear();
}

void Engine::rebuild() {
  group().rebuild();
  if (!module_parameters_.empty()) note_parameters(group_->original());
}

void Engine::load_buffers() {
  if (exchange_) exchange_->load_buffers();
}

void Engine::share_parameters() {
  if (world_.size() == 1) return;
  check_can_step(/*updates=*/false);
  follow_layout();
  if (exchange_->begin_step(true)) note_written();
}

void Engine::unshare_parameters() {
  if (exchange_) exchange_->unshare_parameters();
  release_optimizers();
}

void Engine::release_optimizers() {
  for (const auto& optimizer : adopted_) {
    if (exchange_ || optimizer->is_partitioned()) optimizer->release_state();
  }
}

Tensor Engine::make_state(const Tensor& parameter) {
  if (world_.size() > 1 && !exchange_) {
    check_can_step(/*updates=*/false);
    follow_layout();
  }
  return exchange_ ? exchange_->make_state(parameter)
                   : torch::zeros_like(parameter.detach());
}

Tensor Engine::whole_state(const Tensor& state) {
  return exchange_ ? exchange_->whole_state(state) : state;
}

void Engine::place_state(optim::BlockOptimizer& optimizer) const {
  const Device& first = devices_.front();
  const Tensor& parameter = optimizer.parameters().front();
  if (first.is_cpu() || parameter.device().type() != first.type) return;
  const bool divides = options_.divide_state() && world_.size() == 1 &&
                       devices_.size() > 1 &&
                       options_.replication() == Replication::kResident;
  if (divides) {
    optimizer.partition_state(devices_);
  } else if (optimizer.is_partitioned()) {
    // By another wrapper.
    optimizer.partition_state({first});
  }
}

int64_t Engine::copy_bytes() const {
  return exchange_ ? exchange_->copy_bytes() : 0;
}

}  // namespace lockstep
