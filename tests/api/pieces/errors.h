#pragma once

#include <torch/optim/sgd.h>

#include "tests/api/net_and_loss.h"

// Declarations that the code in docs/errors.md uses.
inline lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
inline torch::optim::SGD optimizer(model->parameters(), 0.1);
inline torch::Tensor x, y;
