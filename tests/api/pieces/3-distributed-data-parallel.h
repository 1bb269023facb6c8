#pragma once

#include "lockstep/lockstep.h"

// Declarations for the code in
// docs/practicals/3-distributed-data-parallel.md.
inline lockstep::ProcessGroup world;
inline int64_t batch_size = 64, step = 0;
