#include "lockstep/lm/models/gelu.h"

#include <algorithm>
#include <cstdint>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/device/autocast.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/simd.h"
#include "lockstep/lm/models/kernels.h"

namespace lockstep::models {
namespace {

using simd::kLanes;
using simd::Lanes;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Number of elements that are worth a thread.
constexpr int64_t kGrain = 16384;

constexpr float kCubic = 0.044715F;
constexpr float kTwiceRoot = 1.5957691216F;  // 2 sqrt(2/pi)

/// Limits x to a range in which the exponential is finite. Outside it, GELU is
/// x or 0. A NaN stays a NaN.
LOCKSTEP_INLINE Lanes limited(Lanes x) {
  return simd::least(simd::most(x, -10), 10);
}

/// Returns (1 + tanh(u)) / 2 for GELU's u, which is the sigmoid of 2u. Takes a
/// limited x.
LOCKSTEP_INLINE Lanes gate(Lanes x) {
  const Lanes u = x + (kCubic * x * x * x);
  return simd::all(1) / (simd::exponential(-kTwiceRoot * u) + 1);
}

/// Returns the slope of GELU. Takes a limited x and its gate.
LOCKSTEP_INLINE Lanes slope(Lanes x, Lanes g) {
  const Lanes inner = kTwiceRoot * ((3 * kCubic * x * x) + 1);
  return g + (x * g * (simd::all(1) - g) * inner);
}

/// Writes GELU(x) to `out`, or with `upstream`, the gradient of x.
struct GeluLoop {
  template <class T>
  LOCKSTEP_INLINE static void run(const T* x, const T* upstream, T* out,
                                  int64_t count) {
    if (upstream == nullptr) {
      simd::for_lanes(count, [=](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
        const Lanes value = simd::load(x + i, n);
        simd::store(value * gate(limited(value)), out + i, n);
      });
      return;
    }
    simd::for_lanes(count, [=](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      const Lanes value = limited(simd::load(x + i, n));
      const Lanes gradient =
          simd::load(upstream + i, n) * slope(value, gate(value));
      simd::store(gradient, out + i, n);
    });
  }
};

bool has_loops(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == torch::kFloat32 ||
                        x.scalar_type() == torch::kBFloat16);
}

/// Runs the loop over parts of the elements in the intra-op threads. `upstream`
/// is undefined in the forward.
template <class T>
Tensor run_loop(const Tensor& x, const Tensor& upstream) {
  Tensor out = torch::empty_like(x);
  const int64_t count = x.numel();
  const T* from = x.const_data_ptr<T>();
  const T* above = upstream.defined() ? upstream.const_data_ptr<T>() : nullptr;
  T* to = out.mutable_data_ptr<T>();
  intra_op_for((count + kGrain - 1) / kGrain, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain;
    const int64_t end = std::min(last * kGrain, count);
    simd::run<GeluLoop>(from + begin,
                        above == nullptr ? nullptr : above + begin, to + begin,
                        end - begin);
  });
  return out;
}

Tensor compute(const Tensor& x, const Tensor& upstream = {}) {
  return x.scalar_type() == torch::kFloat32
             ? run_loop<float>(x, upstream)
             : run_loop<c10::BFloat16>(x, upstream);
}

class TanhGelu : public torch::autograd::Function<TanhGelu> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const Tensor x = input.contiguous();
    context->save_for_backward({input});
    return compute(x);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const Tensor x = context->get_saved_variables()[0].contiguous();
    // With a graph, for second derivatives.
    if (torch::GradMode::is_enabled()) {
      return {at::gelu_backward(upstreams[0], x, "tanh")};
    }
    const Tensor upstream = upstreams[0].to(x.scalar_type()).contiguous();
    return {compute(x, upstream)};
  }
};

/// Writes GELU(h + bias) to `y`, and its slope over h.
struct BiasGelu {
  template <class T>
  LOCKSTEP_INLINE static void run(T* h, const float* bias, T* y, int64_t width,
                                  int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t at = (row * width) + i;
        const Lanes value = simd::load(h + at) + simd::load(bias + i);
        const Lanes x = limited(value);
        const Lanes g = gate(x);
        simd::store(value * g, y + at);
        simd::store(slope(x, g), h + at);
      }
    }
  }
};

/// Writes upstream * slope, and its sums over blocks of rows.
struct BiasGeluBackward {
  template <class T>
  LOCKSTEP_INLINE static void run(const T* upstream, const T* slopes,
                                  T* gradient, float* parts, int64_t width,
                                  int64_t rows, int64_t first, int64_t last) {
    for_rows_of_blocks(first, last, rows,
                       [=](int64_t block, int64_t row) LOCKSTEP_INLINE_LAMBDA {
                         float* sums = parts + (block * width);
                         for (int64_t i = 0; i < width; i += kLanes) {
                           const int64_t at = (row * width) + i;
                           const Lanes value = simd::load(upstream + at) *
                                               simd::load(slopes + at);
                           simd::store(value, gradient + at);
                           simd::store(simd::load(sums + i) + value, sums + i);
                         }
                       });
  }
};

class LinearGelu : public torch::autograd::Function<LinearGelu> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& input,
                        const Tensor& weight, const Tensor& bias) {
    const NoAutocast no_autocast;
    const int64_t width = weight.size(1);
    const Tensor x = input.reshape({-1, weight.size(0)});
    const Tensor slopes = torch::mm(x, weight);
    const Tensor y = torch::empty_like(slopes);
    with_type(slopes.scalar_type(), [&](auto type) {
      using T = decltype(type);
      T* h = slopes.mutable_data_ptr<T>();
      T* to = y.mutable_data_ptr<T>();
      const float* added = bias.const_data_ptr<float>();
      intra_op_for(slopes.size(0), [&](int64_t first, int64_t last) {
        simd::run<BiasGelu>(h, added, to, width, first, last);
      });
    });
    context->save_for_backward({input, weight, bias, slopes});
    auto sizes = input.sizes().vec();
    sizes.back() = width;
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const NoAutocast no_autocast;
    const variable_list saved = context->get_saved_variables();
    const Tensor& weight = saved[1];
    const Tensor x = saved[0].reshape({-1, weight.size(0)});
    const Tensor& slopes = saved[3];
    const int64_t width = weight.size(1);
    auto sizes = upstreams[0].sizes().vec();
    sizes.back() = weight.size(0);
    const Tensor upstream =
        upstreams[0].to(x.scalar_type()).reshape({-1, width}).contiguous();
    if (torch::GradMode::is_enabled()) {
      // With a graph, for second derivatives.
      const Tensor h = torch::mm(x, weight).to(torch::kFloat32) + saved[2];
      const Tensor slope =
          at::gelu_backward(upstream.to(torch::kFloat32), h, "tanh");
      const Tensor rounded = slope.to(x.scalar_type());
      return {torch::mm(rounded, weight.t()).view(sizes),
              torch::mm(x.t(), rounded), slope.sum(0)};
    }
    const int64_t rows = upstream.size(0);
    const int64_t blocks = sum_blocks(rows);
    const Tensor gradient = torch::empty_like(slopes);
    const Tensor parts = torch::zeros({blocks, width}, saved[2].options());
    with_type(slopes.scalar_type(), [&](auto type) {
      using T = decltype(type);
      const T* above = upstream.const_data_ptr<T>();
      const T* kept = slopes.const_data_ptr<T>();
      T* to = gradient.mutable_data_ptr<T>();
      float* sums = parts.mutable_data_ptr<float>();
      intra_op_for(blocks, [&](int64_t first, int64_t last) {
        simd::run<BiasGeluBackward>(above, kept, to, sums, width, rows, first,
                                    last);
      });
    });
    return {torch::mm(gradient, weight.t()).view(sizes),
            torch::mm(x.t(), gradient), sum_in_order(parts)};
  }
};

}  // namespace

Tensor tanh_gelu(const Tensor& x) {
  return has_loops(x) ? TanhGelu::apply(x) : torch::gelu(x, "tanh");
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return LinearGelu::apply(x, weight, bias);
}

}  // namespace lockstep::models
