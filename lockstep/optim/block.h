#pragma once

#include <cstdint>

namespace lockstep::optim {

/// A block of `length` elements of tensor `tensor` from `offset`, in memory
/// order.
struct Block {
  int64_t tensor;
  int64_t offset;
  int64_t length;
};

}  // namespace lockstep::optim
