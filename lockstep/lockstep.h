#pragma once

// Everything a program needs to train in parallel.

#include "lockstep/base/error.h"
#include "lockstep/base/version.h"
#include "lockstep/comm/world.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/device/device.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/worker.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/parallel/replicate.h"
#include "lockstep/parallel/scatter_gather.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/state_dict.h"
#include "lockstep/train/trainer.h"
