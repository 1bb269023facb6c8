#pragma once

#include <string_view>

#include <torch/autograd.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::ddp {

/// Saves `world` for the backward of an autograd function.
void save_world(torch::autograd::AutogradContext& context,
                const ProcessGroup& world);
/// Returns the world that save_world() saved.
ProcessGroup saved_world(const torch::autograd::AutogradContext& context);

/// Throws ParallelError in a backward that must be differentiable itself
/// (create_graph). `fix` is the advice for the user.
void check_no_double_backward(std::string_view component, const char* fix);

}  // namespace lockstep::ddp
