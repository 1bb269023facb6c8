#include "lockstep/train/step/step_parts.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/terminal.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/random.h"
#include "lockstep/device/worker.h"
#include "lockstep/parallel/exchange/comm_hooks.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/group/replica_group.h"
#include "lockstep/parallel/module/nested.h"

namespace lockstep::training {
namespace {

// The step from which PowerSGD compresses. Its buckets are cut anew after the
// first step.
constexpr int64_t kPlainSteps = 2;

// Loads the weights to start from: a checkpoint, a run's folder, a folder with
// weights or a file.
void load_weights(const std::string& from, const Task& task,
                  const NamedTensors& model) {
  if (std::filesystem::is_directory(from) &&
      (has_checkpoint(from) || !has_weights(from))) {
    open_checkpoint(from).load(model);
    return;
  }
  NamedTensors tensors = read_weights(from);
  task.adapt_weights(from, tensors);
  drop_tied_head(model, tensors);
  load_state_dict(model, tensors, from);
}

ModuleSource make_seeded_module(Task& task, uint64_t seed,
                                const torch::Device& device) {
  // Ranks that are threads share LibTorch's default generator.
  static std::mutex generator_is_in_use;
  const std::lock_guard lock(generator_is_in_use);
  torch::manual_seed(seed);
  ModuleSource module = task.make_model(device);
  // A function that makes a replica may draw initial weights, which are then
  // replaced. It must not draw them from the generator with which another rank
  // is making its module.
  module.replicate = [replicate = std::move(module.replicate)] {
    const RandomScope own(RandomState::from_thread());
    return replicate();
  };
  return module;
}

void report_to_agent(StepPhase phase) {
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

CommHook hook_of(const CommunicationOptions& options,
                 const std::optional<PowerSGD>& power_sgd) {
  switch (options.compression()) {
    case GradCompression::kBFloat16:
      return bf16_compress_hook;
    case GradCompression::kFloat16:
      return fp16_compress_hook;
    case GradCompression::kPowerSgd:
      return power_sgd ? CommHook(*power_sgd) : CommHook();
    case GradCompression::kNone:
      break;
  }
  return {};
}

// Returns the shape of the first tensor, as Python prints a list.
std::string shape_of(const std::vector<c10::IValue>& inputs) {
  for (const c10::IValue& input : inputs) {
    const auto tensors = tensors_in(input);
    if (tensors.empty()) continue;
    return fmt::format("[{}]", fmt::join(tensors.front().tensor.sizes(), ", "));
  }
  return "";
}

// Prints "Inside model on device cpu:1, shape [32, 3, 32, 32]" for each shard
// in training, the first time and when its shape changes. This is what one
// prints inside a model to see how a batch is cut. May be called from any
// thread.
class ShardLines {
 public:
  void operator()(const std::vector<c10::IValue>& inputs) const {
    if (!torch::GradMode::is_enabled()) return;  // an evaluation
    const std::string shape = shape_of(inputs);
    const std::lock_guard lock(seen_->mutex);
    std::string& seen = seen_->shapes[current_shard()];
    if (seen == shape) return;
    seen = shape;
    // Writes the whole line at once, in place of a progress bar.
    const std::string line = fmt::format(
        "{}Inside model on device {}, shape {}\n",
        erase_unfinished_line(STDOUT_FILENO), current_device().name(), shape);
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
  }

 private:
  struct Seen {
    std::mutex mutex;
    std::map<int64_t, std::string> shapes;  // by shard
  };
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
};

using OnShard = std::function<void(const std::vector<c10::IValue>&)>;

DataParallelOptions parallel_options(const TrainOptions& options,
                                     const ProcessGroup& world,
                                     const Plan& plan) {
  // A rank that steps locally trains as in a world of one rank.
  const bool is_local = trains_locally(options, plan);
  const int64_t ranks = is_local ? plan.ranks : 1;
  const auto rank = static_cast<uint64_t>(plan.rank);
  return DataParallelOptions()
      .replication(is_classic(options) ? Replication::kEveryForward
                                       : Replication::kResident)
      .process_group(is_local ? ProcessGroup() : world)
      .shards(plan.shards / ranks)
      .intra_op_threads(plan.intra_op_threads)
      .seed(is_local ? mix_seed(options.seed(), rank) : options.seed())
      .zero(options.zero())
      .divide_state(true)
      .verify(options.verify().steps())
      .verify_memory(options.verify().every() == 1)
      .bad_links(options.verify().bad_links())
      .output_device(plan.devices[plan.output_device])
      .on_phase(report_to_agent)
      .on_shard(options.log().shards() ? ShardLines() : OnShard());
}

ModuleSource make_module(Task& task, const TrainOptions& options,
                         const ProcessGroup& world, const Plan& plan,
                         const Resume* resumed) {
  std::optional<MemoryScope> scope;
  charge_first_device(options, plan, scope);
  ModuleSource module = make_seeded_module(task, options.seed(),
                                           torch_device(plan.devices.front()));
  const NamedTensors state = state_of(module.read());
  if (resumed != nullptr) {
    if (resumed->state) resumed->state->load(state);
    // The weights of rank 0 will be given to every rank.
    if (resumed->root != 0) broadcast(world, state, resumed->root);
  } else if (!options.init_from().empty()) {
    load_weights(options.init_from(), task, state);
  }
  return module;
}

std::optional<PowerSGD> make_power_sgd(const TrainOptions& options,
                                       const Plan& plan,
                                       const ModuleHandle& model) {
  const CommunicationOptions& communication = options.communication();
  const bool is_sent =
      plan.ranks > 1 && !trains_locally(options, plan) &&
      communication.compression() == GradCompression::kPowerSgd;
  if (!is_sent) return std::nullopt;
  PowerSGD hook(PowerSGDOptions()
                    .matrix_approximation_rank(communication.powersgd_rank())
                    .start_powerSGD_iter(kPlainSteps));
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  hook.prepare(parameters);
  return hook;
}

std::unique_ptr<Engine> make_engine(const ModuleSource& module,
                                    const TrainOptions& options,
                                    const ProcessGroup& world, const Plan& plan,
                                    const std::optional<PowerSGD>& power_sgd) {
  auto engine = std::make_unique<Engine>(
      module, plan.devices, parallel_options(options, world, plan));
  const CommHook hook = hook_of(options.communication(), power_sgd);
  // OuterStep compresses the changes of local steps.
  if (hook && plan.ranks > 1 && !trains_locally(options, plan)) {
    engine->register_comm_hook(hook);
  }
  return engine;
}

}  // namespace

bool is_classic(const TrainOptions& options) {
  return options.strategy() == Strategy::kDataParallelClassic;
}

bool trains_locally(const TrainOptions& options, const Plan& plan) {
  return options.communication().is_local() && plan.ranks > 1;
}

void charge_first_device(const TrainOptions& options, const Plan& plan,
                         std::optional<MemoryScope>& scope) {
  if (is_classic(options)) scope.emplace(plan.devices.front());
}

NamedTensors state_of(const ModuleHandle& handle) {
  NamedTensors state = handle.parameters;
  state.insert(state.end(), handle.buffers.begin(), handle.buffers.end());
  return state;
}

c10::DeviceType device_type(const Plan& plan) {
  return torch_device(plan.devices.front()).type();
}

StepParts make_step_parts(Task& task, const TrainOptions& options,
                          const ProcessGroup& world, const Plan& plan,
                          const Resume* resumed) {
  ModuleSource module = make_module(task, options, world, plan, resumed);
  StepParts parts{.module = module, .model = module.read()};
  parts.power_sgd = make_power_sgd(options, plan, parts.model);
  // The hook must be set before the optimizer is made, because it decides
  // whether each rank has its own state.
  parts.engine = make_engine(module, options, world, plan, parts.power_sgd);
  std::optional<MemoryScope> scope;
  charge_first_device(options, plan, scope);
  parts.optimizer = task.make_optimizer(
      [engine = parts.engine.get()](const torch::Tensor& of) {
        return engine->make_state(of);
      });
  // Before a checkpoint is loaded, which would need room for all of the state
  // on the first device.
  parts.optimizer->place_state(*parts.engine);
  return parts;
}

}  // namespace lockstep::training
