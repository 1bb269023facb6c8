#pragma once

// The parts of DataParallel as functions, as in torch.nn.parallel, and what
// layers and losses need to see the samples of all ranks.
//
//   scatter(), gather()      split a batch among devices, join the outputs
//   shared()                 passes a tensor of a batch whole to each device
//   replicate(), to()        copies of a module on devices
//   parallel_apply()         runs one call on each replica
//   all_gather_with_grad()   the outputs of all ranks, for contrastive losses
//   SyncBatchNorm            batch normalisation over the samples of all ranks

#include "lockstep/parallel/ddp/all_gather_with_grad.h"  // IWYU pragma: export
#include "lockstep/parallel/ddp/sync_batch_norm.h"       // IWYU pragma: export
#include "lockstep/parallel/group/parallel_apply.h"      // IWYU pragma: export
#include "lockstep/parallel/module/replicate.h"          // IWYU pragma: export
#include "lockstep/parallel/module/scatter_gather.h"     // IWYU pragma: export
#include "lockstep/parallel/module/shared.h"             // IWYU pragma: export
