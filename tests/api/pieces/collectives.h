#pragma once

#include "lockstep/lockstep.h"

// What the pieces of docs/collectives.md are about.
inline lockstep::World world;
inline torch::Tensor gradient;
inline std::vector<torch::Tensor> gradients;
