#include "lockstep/lm/models/kernels.h"

#include "lockstep/device/autocast.h"

namespace lockstep::models {

using torch::Tensor;

torch::ScalarType product_type_on_cpu() {
  return autocast_type(at::kCPU).value_or(torch::kFloat32);
}

bool has_kernels(const Tensor& x, const Tensor& weight) {
  const auto type = product_type_on_cpu();
  return x.is_cpu() && x.scalar_type() == torch::kFloat32 &&
         weight.scalar_type() == torch::kFloat32 &&
         (type == torch::kFloat32 || type == torch::kBFloat16);
}

Tensor sum_in_order(const Tensor& rows) {
  const Tensor parts = rows.contiguous();
  Tensor sum = torch::zeros({parts.size(1)}, parts.options());
  float* to = sum.mutable_data_ptr<float>();
  const float* from = parts.const_data_ptr<float>();
  const int64_t width = parts.size(1);
  for (int64_t row = 0; row < parts.size(0); ++row) {
    for (int64_t i = 0; i < width; ++i) to[i] += from[(row * width) + i];
  }
  return sum;
}

}  // namespace lockstep::models
