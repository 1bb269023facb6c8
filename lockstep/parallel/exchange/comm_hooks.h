#pragma once

#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep {

/// Sums the gradients as DistributedDataParallel does without a hook.
void allreduce_hook(const ProcessGroup& group, GradBucket& bucket);
/// Sums in half precision, which sends half the bytes. Same as PyTorch's
/// fp16_compress_hook, but averages before it rounds, so large sums overflow
/// less easily.
void fp16_compress_hook(const ProcessGroup& group, GradBucket& bucket);
/// Same, in bfloat16.
void bf16_compress_hook(const ProcessGroup& group, GradBucket& bucket);

}  // namespace lockstep
