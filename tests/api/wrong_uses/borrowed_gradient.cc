// A tensor that others may hold, in place of a gradient that is owned.
// expects: (conversion|convert).*OwnedGradient
#include <torch/torch.h>

#include "lockstep/parallel/reduction/owned_gradient.h"

int main() {
  const lockstep::OwnedGradient gradient = torch::ones({2});
  return gradient.defined() ? 0 : 1;
}
