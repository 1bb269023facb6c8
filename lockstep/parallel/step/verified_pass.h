#pragma once

#include <functional>

#include "lockstep/parallel/module/replica.h"
#include "lockstep/parallel/step/shard.h"

namespace lockstep {

/// Returns the result on which two computations of a shard's loss, gradients
/// and buffers agree. Computes them twice from the same weights, buffers and
/// random numbers, and once more if the bits differ. This detects a processor
/// that sometimes computes wrong results, and memory that changes. Holds the
/// gradients of at most one computation at a time.
///
/// Must be called in the thread of the replica's device. Throws TrainError if
/// no two of three computations agree, for example with a module that counts
/// its calls or a kernel that adds in any order.
ShardPass verified_pass(Replica& replica,
                        const std::function<ShardPass()>& compute);

}  // namespace lockstep
