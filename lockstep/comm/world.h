#pragma once

#include "lockstep/comm/process_group.h"

namespace lockstep {
using World = ProcessGroup;
using WorldOptions = ProcessGroupOptions;
}  // namespace lockstep
