#pragma once

#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// What DistributedDataParallel does without a hook.
void allreduce_hook(const World& world, GradBucket& bucket);
/// Sums in half precision: half the bytes. As torch's fp16_compress_hook, but
/// averaged before it is rounded, so that sums overflow later.
void fp16_compress_hook(const World& world, GradBucket& bucket);
/// Likewise in bfloat16.
void bf16_compress_hook(const World& world, GradBucket& bucket);

}  // namespace lockstep
