#pragma once

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Compares the modules of all ranks: names, shapes, types and number of
/// parameters and buffers. Throws ParallelError on every rank, naming the first
/// difference and both ranks.
void verify_ranks(const ProcessGroup& world, const ModuleHandle& module);

/// Compares the bytes of the gradients with which every rank is about to update
/// its parameters. `unique[i]` is the index in `gradients` of the gradient of
/// module.parameters[i]. Throws ParallelError on every rank, naming the first
/// parameter whose gradients differ and both ranks.
void verify_gradients(const ProcessGroup& world, const ModuleHandle& module,
                      const std::vector<size_t>& unique,
                      const std::vector<torch::Tensor>& gradients);

}  // namespace lockstep
