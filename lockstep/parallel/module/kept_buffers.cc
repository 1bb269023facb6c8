#include "lockstep/parallel/module/kept_buffers.h"

#include <cstddef>

namespace lockstep {

KeptBuffers::KeptBuffers(const ModuleHandle& module)
    : buffers_(module.buffers) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers_) {
    values_.push_back(buffer.clone());
  }
}

void KeptBuffers::restore() const {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < values_.size(); ++i) {
    buffers_[i].second.copy_(values_[i]);
  }
}

}  // namespace lockstep
