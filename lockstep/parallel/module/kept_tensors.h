#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Copies of tensors. They undo the writes of a computation that is run only to
/// inspect its result.
class KeptTensors {
 public:
  explicit KeptTensors(std::vector<torch::Tensor> tensors);

  /// Restores the values and version counters of the tensors, so that a
  /// backward that needs one of them does not notice the writes. Tensors that
  /// were not written to are left unchanged.
  void restore() const;

 private:
  struct Kept {
    torch::Tensor tensor;
    torch::Tensor values;
    int64_t version;
  };
  std::vector<Kept> kept_;
};

/// Runs `task`, and then `restore`, even if `task` throws. Unlike a destructor,
/// `restore` may throw, as a device that has failed does.
template <class Task, class Restore>
void run_and_restore(const Task& task, const Restore& restore) {
  try {
    task();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

/// Keeps the buffers of `module`.
KeptTensors kept_buffers(const ModuleHandle& module);

}  // namespace lockstep
