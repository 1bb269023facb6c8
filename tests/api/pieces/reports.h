#pragma once

#include <torch/optim/sgd.h>

#include "tests/api/net_and_loss.h"

// Declarations that the code in docs/reports.md uses.
inline lockstep::ProcessGroup world;
inline auto devices = lockstep::devices("2xcpu");
inline lockstep::DataParallel model(net, devices);
inline torch::optim::SGD sgd(model->parameters(), 0.1);
inline torch::Tensor inputs, targets;
