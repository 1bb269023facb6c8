#pragma once

#include "tests/api/net_and_loss.h"

// Declarations that the code in docs/from-pytorch.md uses.
inline torch::Tensor x, y;
inline lockstep::ProcessGroup world;
