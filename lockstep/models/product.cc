#include "lockstep/models/product.h"

#include <algorithm>
#include <cstdint>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/linear.h>

#include "lockstep/device/autocast.h"
#include "lockstep/device/bfloat16_loops.h"
#include "lockstep/device/intra_op.h"

namespace lockstep::models {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A layer with fewer weights stays in a cache anyway.
constexpr int64_t kLargeLayer = int64_t{1} << 18;

// So many weights are converted to float32 at a time (1 MiB), so that they are
// multiplied while they are in the cache.
constexpr int64_t kPanel = int64_t{1} << 18;

/// Converts a contiguous tensor in the intra-op threads. LibTorch's copies are
/// not compiled for AVX-512.
Tensor widened(const Tensor& narrow) {
  const Tensor wide =
      torch::empty(narrow.sizes(), narrow.options().dtype(torch::kFloat32));
  const auto* from = narrow.const_data_ptr<c10::BFloat16>();
  auto* to = wide.mutable_data_ptr<float>();
  intra_op_for(narrow.numel(), [&](int64_t begin, int64_t end) {
    widen(from + begin, to + begin, end - begin);
  });
  return wide;
}
void narrow_to(const Tensor& wide, const Tensor& narrow) {
  const auto* from = wide.const_data_ptr<float>();
  auto* to = narrow.mutable_data_ptr<c10::BFloat16>();
  intra_op_for(wide.numel(), [&](int64_t begin, int64_t end) {
    lockstep::narrow(from + begin, to + begin, end - begin);
  });
}

/// Calls use(panel, first, count) with some rows of `weight` at a time, in
/// float32.
template <class Use>
void for_panels(const Tensor& weight, const Use& use) {
  const int64_t rows = weight.size(0);
  const int64_t step = std::max<int64_t>(16, kPanel / weight.size(1));
  for (int64_t i = 0; i < rows; i += step) {
    const int64_t count = std::min(step, rows - i);
    use(widened(weight.narrow(0, i, count)), i, count);
  }
}

/// A linear layer of (N, in) by (out, in) in bfloat16, computed in float32.
class LinearInPanels : public torch::autograd::Function<LinearInPanels> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& weight, const Tensor& bias) {
    const NoAutocast no_autocast;
    context->save_for_backward({x, weight});
    const Tensor wide_x = x.to(torch::kFloat32);
    const Tensor y =
        torch::empty({x.size(0), weight.size(0)}, wide_x.options());
    for_panels(weight.contiguous(),
               [&](const Tensor& panel, int64_t first, int64_t count) {
                 Tensor part = y.narrow(1, first, count);
                 torch::mm_out(part, wide_x, panel.t());
               });
    if (bias.defined()) y.add_(bias);
    return y.to(torch::kBFloat16);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const NoAutocast no_autocast;
    const variable_list saved = context->get_saved_variables();
    const Tensor upstream = upstreams[0].to(torch::kFloat32);
    const Tensor x = saved[0].to(torch::kFloat32);
    const Tensor weight = saved[1].contiguous();
    const bool for_x = context->needs_input_grad(0);
    const bool for_weight = context->needs_input_grad(1);
    Tensor grad_x, grad_weight, grad_bias;
    if (context->needs_input_grad(2)) {
      grad_bias = upstream.sum(0).to(torch::kBFloat16);
    }
    if (torch::GradMode::is_enabled()) {
      // With a graph, for second derivatives.
      grad_x = upstream.mm(weight.to(torch::kFloat32)).to(torch::kBFloat16);
      grad_weight = upstream.t().mm(x).to(torch::kBFloat16);
      return {grad_x, grad_weight, grad_bias};
    }
    if (for_x) grad_x = torch::zeros_like(x);
    if (for_weight) grad_weight = torch::empty_like(weight);
    for_panels(weight, [&](const Tensor& panel, int64_t first, int64_t count) {
      const Tensor part = upstream.narrow(1, first, count);
      if (for_x) grad_x.addmm_(part, panel);
      if (for_weight)
        narrow_to(part.t().mm(x), grad_weight.narrow(0, first, count));
    });
    if (for_x) grad_x = grad_x.to(torch::kBFloat16);
    return {grad_x, grad_weight, grad_bias};
  }
};

}  // namespace

bool has_rounded_products() {
  return autocast_type(torch::kCPU) == torch::kBFloat16 && has_slow_bfloat16();
}

Tensor rounded(const Tensor& x) {
  return x.defined() ? cast_for_products(x).to(torch::kFloat32) : x;
}

Tensor multiply(const torch::nn::LinearImpl& layer, const Tensor& x) {
  if (has_rounded_products() && x.dim() == 2 &&
      layer.weight.numel() >= kLargeLayer) {
    const Tensor input = cast_for_products(x);
    const Tensor weight = cast_for_products(layer.weight);
    if (input.scalar_type() == torch::kBFloat16 &&
        weight.scalar_type() == torch::kBFloat16 &&
        input.size(1) == weight.size(1)) {
      const Tensor& bias = layer.bias;
      return LinearInPanels::apply(
          input, weight, bias.defined() ? cast_for_products(bias) : bias);
    }
  }
  return product(
      [](const Tensor& input, const Tensor& weight, const Tensor& bias) {
        return torch::nn::functional::linear(input, weight, bias);
      },
      x, layer.weight, layer.bias);
}

Tensor multiply_transposed(const Tensor& x, const Tensor& weight) {
  return product(
      [](const Tensor& input, const Tensor& matrix) {
        return torch::nn::functional::linear(input, matrix);
      },
      x, weight);
}

}  // namespace lockstep::models
