#pragma once

// The headers of lockstep::train, with LibTorch. lm.h has language models.

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/cli/embed/train_main.h"
#include "lockstep/core.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/model.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/trainer.h"
