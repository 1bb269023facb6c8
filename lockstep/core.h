#pragma once

// DataParallel, DistributedDataParallel, process groups and devices: what
// lockstep::core has. LibTorch is included.

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/links.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/worker.h"
#include "lockstep/launch/failure/error_file.h"
#include "lockstep/losses/cross_entropy.h"
#include "lockstep/optim/parameters.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/functional.h"
