#include "lockstep/parallel/exchange/comm_hooks.h"

namespace lockstep {
namespace {

void compress(const ProcessGroup& world, GradBucket& bucket,
              at::ScalarType type) {
  torch::Tensor compressed =
      (bucket.weight == 1 ? bucket.buffer : bucket.buffer * bucket.weight)
          .to(type);
  world.all_reduce(compressed);
  bucket.buffer.copy_(compressed);
}

}  // namespace

void allreduce_hook(const ProcessGroup& world, GradBucket& bucket) {
  if (bucket.weight != 1) bucket.buffer.mul_(bucket.weight);
  world.all_reduce(bucket.buffer);
}

void fp16_compress_hook(const ProcessGroup& world, GradBucket& bucket) {
  compress(world, bucket, torch::kHalf);
}

void bf16_compress_hook(const ProcessGroup& world, GradBucket& bucket) {
  compress(world, bucket, torch::kBFloat16);
}

}  // namespace lockstep
