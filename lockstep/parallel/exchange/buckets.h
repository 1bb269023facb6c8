#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/torch.h>

#include "lockstep/comm/world.h"
#include "lockstep/parallel/exchange/grad_bucket.h"

namespace lockstep::ddp {

/// Cuts the parameters, taken in `order` (places in `parameters`), into
/// buckets of one type and device. A bucket is full when it has reached its
/// limit in bytes: `first_cap` the first of a type, `cap` the others. The
/// bucket that is complete first comes first. As torch's
/// compute_bucket_assignment_by_size.
std::vector<std::vector<size_t>> assign_buckets(
    std::span<const torch::Tensor> parameters, std::span<const size_t> order,
    int64_t first_cap, int64_t cap);

/// A bucket and whose gradients are in it.
struct Bucket {
  std::vector<size_t> places;  ///< of its parameters
  GradBucket grads;
};

/// Allocates the buckets (collective), zeroed: on one host in memory that the
/// ranks share, at the same place on each, so that World::all_reduce() sums
/// them where they are.
std::vector<Bucket> make_buckets(
    const World& world, std::span<const torch::Tensor> parameters,
    const std::vector<std::vector<size_t>>& assignment);

}  // namespace lockstep::ddp
