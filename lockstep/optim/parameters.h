#pragma once

#include <vector>

#include <torch/types.h>

namespace lockstep::optim {

/// Returns each of `parameters` once, in the order of its first occurrence, as
/// Module.parameters() does in Python. LibTorch's parameters() lists a
/// parameter once for each of its names, and torch::optim then updates it that
/// many times in each step.
std::vector<torch::Tensor> unique(const std::vector<torch::Tensor>& parameters);

/// Gone. Make a torch::optim::SGD.
template <class Parameters, class Options>
void sgd(const Parameters&, const Options&) {
  static_assert(sizeof(Parameters) == 0,
                "lockstep::optim::sgd() is gone; make a torch::optim::SGD and "
                "pass it to train_step()");
}
/// Gone. Make a torch::optim::AdamW.
template <class Parameters, class Options>
void adamw(const Parameters&, const Options&) {
  static_assert(sizeof(Parameters) == 0,
                "lockstep::optim::adamw() is gone; make a torch::optim::AdamW "
                "and pass it to train_step()");
}

}  // namespace lockstep::optim
