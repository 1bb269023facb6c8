// A module with two functions forward().
// expects: the module needs one forward\(\)
#include <torch/torch.h>

#include "lockstep/parallel/data_parallel.h"

struct TwoForwards : torch::nn::Cloneable<TwoForwards> {
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& a) { return a; }
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b) {
    return a + b;
  }
};

int main() {
  const lockstep::DataParallel model(std::make_shared<TwoForwards>(),
                                     lockstep::devices("2xcpu"));
  return model->is_training() ? 0 : 1;
}
