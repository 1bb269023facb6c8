#pragma once

#include "lockstep/comm/world.h"
#include "lockstep/parallel/module_handle.h"

namespace lockstep {

/// Compares the modules of all ranks: names, shapes, types and number of
/// parameters and buffers. Throws InvalidArgument, on every rank, naming the
/// first that differs and both ranks.
void verify_ranks(const World& world, const ModuleHandle& module);

}  // namespace lockstep
