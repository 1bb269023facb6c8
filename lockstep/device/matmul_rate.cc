#include "lockstep/device/matmul_rate.h"

#include <algorithm>

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/stopwatch.h"

namespace lockstep {

double measure_matmul_rate(const c10::Device& device, c10::ScalarType type) {
  constexpr double kSeconds = 0.05;
  // Large enough for all of a GPU. On a core, a product takes a few
  // milliseconds.
  const int64_t size = device.is_cpu() ? 512 : 4096;
  const torch::NoGradGuard no_grad;
  const auto options = torch::TensorOptions(device).dtype(type);
  const torch::Tensor a = torch::ones({size, size}, options);
  const torch::Tensor b = torch::ones({size, size}, options);
  torch::Tensor product = torch::empty({size, size}, options);
  const double operations = 2.0 * static_cast<double>(size * size * size);
  double best = 0;
  const Stopwatch all;
  do {
    const Stopwatch watch;
    torch::mm_out(product, a, b);
    // Waits until a GPU is done.
    product[0][0].item<double>();
    best = std::max(best, operations / watch.seconds());
  } while (all.seconds() < kSeconds);
  return best;
}

}  // namespace lockstep
