#pragma once

#include "lockstep/lockstep.h"

// What the pieces of docs/practicals/3-distributed-data-parallel.md are about.
inline lockstep::World world;
inline int64_t batch_size = 64, step = 0;
