#include "lockstep/optim/parameters.h"

#include <unordered_set>

namespace lockstep::optim {

using torch::Tensor;

std::vector<Tensor> unique(const std::vector<Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<Tensor> once;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      once.push_back(parameter);
    }
  }
  return once;
}

}  // namespace lockstep::optim
