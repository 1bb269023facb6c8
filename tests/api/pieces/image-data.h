#pragma once

#include "tests/api/net_and_loss.h"

// Declarations that the code in docs/image-data.md uses.
inline auto model = lockstep::DataParallel(net, lockstep::devices("cpu"));
inline torch::optim::SGD optimizer(net->parameters(), 0.1);
