#pragma once

#include "lockstep/lockstep.h"

// Declarations that the code in docs/collectives.md uses.
inline lockstep::ProcessGroup group;
inline torch::Tensor gradient;
inline std::vector<torch::Tensor> gradients;
