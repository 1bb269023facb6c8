#pragma once

#include <memory>
#include <optional>

#include "lockstep/device/memory.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/resume.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/task.h"

// The parts that the step of a run is made of, as its options ask for them.
namespace lockstep::train {

bool is_classic(const TrainOptions& options);
/// Whether each rank makes steps by itself.
bool trains_locally(const TrainOptions& options);

/// How many steps there are between two comparisons of what the ranks have
/// alike; 0 if there is nothing to compare: ranks in shared memory have one of
/// all.
int64_t steps_between_comparisons(const TrainOptions& options);

/// dp-classic: puts what `scope`'s life allocates on device 0's account. Model
/// and optimizer are there, as the textbook has it; else they are held once for
/// all slices, on the host's account.
void charge_first_device(const TrainOptions& options, const Plan& plan,
                         std::optional<MemoryScope>& scope);

/// Parameters, then buffers.
NamedTensors state_of(const ModuleHandle& handle);

/// The task's model, with the weights of options.init_from or `resumed`.
/// Collective if it is resumed.
Engine::Module make_module(Task& task, const TrainOptions& options,
                           const Plan& plan, const Resume* resumed);

std::unique_ptr<RunOptimizer> make_optimizer(
    Task& task, const TrainOptions& options, const Plan& plan,
    const optim::StateFactory& make_state);

/// Returns the hook that compresses the gradients of `model` with PowerSGD, if
/// `options` ask for it.
std::optional<PowerSGD> make_power_sgd(const TrainOptions& options,
                                       const ModuleHandle& model);

/// Makes the engine with the hook that `options` ask for: `power_sgd` or another
/// one. The hook must be there before the optimizer: it decides whether each
/// rank has state of its own.
std::unique_ptr<Engine> make_engine(const Engine::Module& module,
                                    const TrainOptions& options,
                                    const Plan& plan,
                                    const std::optional<PowerSGD>& power_sgd);

}  // namespace lockstep::train
