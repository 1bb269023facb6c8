#include "lockstep/device/matmul_rate.h"

#include <algorithm>

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/stopwatch.h"

namespace lockstep {
namespace {

using torch::Tensor;

// A square product on a device, repeated in the same memory.
class Product {
 public:
  Product(const c10::Device& device, c10::ScalarType type, int64_t size)
      : operations_(2.0 * static_cast<double>(size * size * size)) {
    const auto options = torch::TensorOptions(device).dtype(type);
    a_ = torch::ones({size, size}, options);
    b_ = torch::ones({size, size}, options);
    out_ = torch::empty({size, size}, options);
  }

  /// Returns the seconds that it takes.
  double run() {
    const Stopwatch watch;
    torch::mm_out(out_, a_, b_);
    // Waits until a GPU is done.
    out_[0][0].item<double>();
    return watch.seconds();
  }
  double operations() const { return operations_; }

 private:
  double operations_;
  Tensor a_, b_, out_;
};

// Returns a size that takes a few milliseconds: large enough for all of a GPU.
int64_t size_of_product(const c10::Device& device, c10::ScalarType type) {
  constexpr int64_t kSmall = 512;
  constexpr int64_t kLarge = 4096;
  constexpr double kEnoughSeconds = 5e-3;
  if (device.is_cpu()) return kSmall;
  int64_t size = kSmall;
  while (size < kLarge) {
    Product product(device, type, size);
    product.run();  // loads the kernel
    if (product.run() >= kEnoughSeconds) break;
    size *= 2;
  }
  return size;
}

}  // namespace

double measure_matmul_rate(const c10::Device& device, c10::ScalarType type) {
  constexpr double kSeconds = 0.05;
  const torch::NoGradGuard no_grad;
  Product product(device, type, size_of_product(device, type));
  double best = 0;
  const Stopwatch all;
  do {
    best = std::max(best, product.operations() / product.run());
  } while (all.seconds() < kSeconds);
  return best;
}

}  // namespace lockstep
