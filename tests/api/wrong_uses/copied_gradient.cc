// Two owners of a gradient's memory.
// expects: (deleted|delete).*OwnedGradient|OwnedGradient.*(deleted|delete)
#include "lockstep/parallel/reduction/owned_gradient.h"

int main() {
  const lockstep::OwnedGradient gradient;
  const lockstep::OwnedGradient copy = gradient;
  return copy.defined() ? 0 : 1;
}
