#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/world.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/task.h"

// The parts that make up a step of a run, as its options ask for them.
namespace lockstep::train {

bool is_classic(const TrainOptions& options);
/// Returns true if each rank makes its own steps.
bool trains_locally(const TrainOptions& options, const Plan& plan);

/// Returns the number of steps between two comparisons of the ranks' common
/// state. Returns 0 if there is nothing to compare, because the ranks share one
/// copy in memory.
int64_t steps_between_comparisons(const TrainOptions& options,
                                  const World& world);

/// dp-classic: charges memory that is allocated during the lifetime of `scope`
/// to device 0, which has the model and the optimizer, as in the textbook.
/// Otherwise they exist once for all slices and are charged to the host.
void charge_first_device(const TrainOptions& options, const Plan& plan,
                         std::optional<MemoryScope>& scope);

/// Returns the parameters, then the buffers.
NamedTensors state_of(const ModuleHandle& handle);

/// Makes the task's model, with the weights of options.init_from or `resumed`.
/// Collective if it is resumed.
Engine::Module make_module(Task& task, const TrainOptions& options,
                           const World& world, const Plan& plan,
                           const Resume* resumed);

std::unique_ptr<RunOptimizer> make_optimizer(
    Task& task, const TrainOptions& options, const Plan& plan,
    const optim::StateFactory& make_state);

/// Returns the hook that compresses the gradients of `model` with PowerSGD, if
/// `options` ask for it.
std::optional<PowerSGD> make_power_sgd(const TrainOptions& options,
                                       const Plan& plan,
                                       const ModuleHandle& model);

/// Makes the engine with the hook that `options` ask for: `power_sgd` or
/// another one. The hook must be set before the optimizer is made, because it
/// decides whether each rank has its own state.
std::unique_ptr<Engine> make_engine(const Engine::Module& module,
                                    const TrainOptions& options,
                                    const World& world, const Plan& plan,
                                    const std::optional<PowerSGD>& power_sgd);

}  // namespace lockstep::train
