// A wrapped TorchScript module, saved with torch::save().
// expects: a TorchScript module is saved with model->module\(\)\.save\(path\)
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

int main() {
  const lockstep::DataParallel model(torch::jit::load("net.pt"),
                                     lockstep::devices("2xcpu"));
  torch::save(model, "copy.pt");
}
