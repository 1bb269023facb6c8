#include "lockstep/parallel/parallel_module.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/group/replica_group.h"

namespace lockstep {

using torch::jit::Module;

DataParallelOptions detail::for_one_rank(DataParallelOptions options) {
  const int ranks = options.process_group().size();
  if (ranks == 1) return options;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadOption,
       .what = "DataParallel runs a module on the devices of one rank",
       .expected = "a process group of one rank, or none",
       .got = fmt::format("a process group of {} ranks", ranks),
       .fix = "use DistributedDataParallel(module, group): its train_step() "
              "gives the same bits"});
}

NoSync::NoSync(std::shared_ptr<Engine> engine)
    : engine_(std::move(engine)), was_synced_(engine_->is_synced()) {
  engine_->set_synced(false);
}

NoSync::~NoSync() { engine_->set_synced(was_synced_); }

ParallelModuleBase::ParallelModuleBase(ModuleSource module,
                                       std::vector<Device> devices,
                                       DataParallelOptions options)
    : engine_(std::make_shared<Engine>(std::move(module), std::move(devices),
                                       std::move(options))) {}

ParallelModuleBase::ParallelModuleBase(
    ModuleSource module, const ProcessGroup& process_group,
    const DistributedDataParallelOptions& options)
    : engine_(std::make_shared<Engine>(std::move(module), process_group,
                                       options)) {}

void ParallelModuleBase::register_comm_hook(const CommHook& hook) {
  engine_->set_comm_hook(hook);
}

void ParallelModuleBase::join(const std::function<void()>& steps,
                              const JoinOptions& options) {
  engine_->join(steps, options);
}

const std::vector<Device>& ParallelModuleBase::devices() const {
  return engine_->group().devices();
}

int64_t ParallelModuleBase::shards() const { return engine_->group().shards(); }

std::vector<int64_t> ParallelModuleBase::split(int64_t batch) const {
  return engine_->group().split(batch);
}

PhaseTimes ParallelModuleBase::phase_times() const {
  return engine_->group().clock().times();
}

const std::vector<std::unique_ptr<Worker>>& ParallelModuleBase::workers()
    const {
  return engine_->group().workers();
}

void ParallelModuleBase::set_step(int64_t step) {
  engine_->group().set_step(step);
}

torch::Tensor ParallelModuleBase::make_state(const torch::Tensor& parameter) {
  return engine_->make_state(parameter);
}

torch::Tensor ParallelModuleBase::whole_state(const torch::Tensor& state) {
  return engine_->whole_state(state);
}

int64_t ParallelModuleBase::copy_bytes() const { return engine_->copy_bytes(); }

void ParallelModuleBase::load_buffers() { engine_->load_buffers(); }

void ParallelModuleBase::verify_next_step() { engine_->verify_next_step(); }

void ParallelModuleBase::rebuild() { engine_->rebuild(); }

void ParallelModuleBase::share_parameters() { engine_->share_parameters(); }

void ParallelModuleBase::unshare_parameters() { engine_->unshare_parameters(); }

c10::IValue ParallelModuleBase::forward_replicas(const Values& inputs) {
  return engine_->forward(inputs);
}

c10::IValue ParallelModuleBase::forward_synced(
    const Values& inputs, const std::function<c10::IValue()>& forward) {
  return engine_->watch(inputs, forward);
}

StepResult ParallelModuleBase::train_step(const Values& inputs,
                                          const c10::IValue& target,
                                          const ShardLoss& loss,
                                          optim::Optimizer& optimizer,
                                          const TrainStepOptions& options) {
  return engine_->train_step(inputs, target, loss, &optimizer, options);
}

StepResult ParallelModuleBase::train_step(const Values& inputs,
                                          const c10::IValue& target,
                                          const ShardLoss& loss,
                                          torch::optim::Optimizer& optimizer,
                                          const TrainStepOptions& options) {
  return engine_->train_step(inputs, target, loss, optimizer, options);
}

StepResult ParallelModuleBase::train_step(const Values& inputs,
                                          const c10::IValue& target,
                                          const ShardLoss& loss,
                                          const TrainStepOptions& options) {
  return engine_->train_step(inputs, target, loss, nullptr, options);
}

const Device& ParallelModuleBase::gathering_device() const {
  return engine_->group().output_device();
}

std::vector<std::vector<size_t>> ParallelModuleBase::gradient_buckets() const {
  return engine_->buckets();
}

std::vector<torch::Tensor> ParallelModule<Module>::parameters() const {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module_.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
