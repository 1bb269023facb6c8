#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Every type that the backends on the host reduce.
const std::vector<at::ScalarType>& all_types();

/// Returns the data of `rank`, which is the same on every rank that asks.
at::Tensor data_of(int rank, int64_t count, at::ScalarType type,
                   uint64_t salt = 0);

/// Bit for bit; torch.equal() has no float8.
bool same(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep
