#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/exchange/power_sgd.h"
#include "lockstep/train/run_optimizer.h"
#include "lockstep/train/state/resume.h"
#include "lockstep/train/task.h"
#include "lockstep/train/train_options.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::training {

/// The parts of a run that compute its steps, as its options ask for them.
struct StepParts {
  ModuleSource module;
  ModuleHandle model;                   ///< of `module`
  std::optional<PowerSGD> power_sgd{};  ///< compresses gradients
  std::unique_ptr<Engine> engine{};
  std::unique_ptr<RunOptimizer> optimizer{};
};

bool is_classic(const TrainOptions& options);
/// Returns true if each rank makes its own steps.
bool trains_locally(const TrainOptions& options, const Plan& plan);

c10::DeviceType device_type(const Plan& plan);

/// dp-classic: charges memory that is allocated during the lifetime of `scope`
/// to device 0, which has the model and the optimizer, as in the textbook.
/// Otherwise they exist once for all slices and are charged to the host.
void charge_first_device(const TrainOptions& options, const Plan& plan,
                         std::optional<MemoryScope>& scope);

/// Returns the parameters, then the buffers.
NamedTensors state_of(const ModuleHandle& handle);

/// Makes the task's model, with the weights of options.init_from() or
/// `resumed`, and what computes its steps. Collective if it is resumed.
StepParts make_step_parts(Task& task, const TrainOptions& options,
                          const ProcessGroup& world, const Plan& plan,
                          const Resume* resumed);

}  // namespace lockstep::training
