#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "lockstep/tools/measurement/operator_recording.h"

namespace lockstep {

/// The amount of work in recorded matrix products and convolutions.
struct MatrixWork {
  int64_t calls = 0;
  double flops = 0;  ///< a multiplication and an addition are two
  double bytes = 0;  ///< read and written, each operand of a call once
};

/// Runs recorded matrix products and convolutions again, without the rest of
/// the step: the same operators on new tensors of the same layouts and types.
///
/// Tensors that shared a storage do so again, so that as many bytes are in the
/// caches as in the step. The results are in new memory, as in the step.
class MatrixReplay {
 public:
  /// Makes the tensors. Must be called in the thread that calls run(), so that
  /// their memory is near it.
  explicit MatrixReplay(const std::vector<MatrixCall>& calls);

  /// Runs all calls, in their order.
  void run() const;
  /// Runs all calls and counts their work. Operators that this function does
  /// not know count no flops.
  MatrixWork count() const;
  /// Returns the bytes of all storages.
  int64_t storage_bytes() const { return storage_bytes_; }

 private:
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;
  };

  std::vector<Call> calls_;
  int64_t storage_bytes_ = 0;
};

}  // namespace lockstep
