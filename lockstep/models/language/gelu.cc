#include "lockstep/models/language/gelu.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "lockstep/device/intra_op.h"

namespace lockstep::models {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Number of elements that are worth a thread.
constexpr int64_t kGrain = 16384;

// The following functions are inlined into loops that the compiler vectorizes.
// A branch or a call would prevent that.
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

LOCKSTEP_INLINE float load(float value) { return value; }
LOCKSTEP_INLINE float load(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}

LOCKSTEP_INLINE void store(float value, float& to) { to = value; }
LOCKSTEP_INLINE void store(float value, c10::BFloat16& to) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Round to nearest, ties to even.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // For a NaN, the sum could be an infinity.
  to.x = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}

/// Returns exp(x) for x from -88 to 88, with Cephes' polynomial (Moshier,
/// expf.c).
LOCKSTEP_INLINE float exponential(float x) {
  // Adding this to a small number rounds it to an integer in the low bits.
  constexpr float kRounds = 12582912;
  const float shifted = (x * 1.44269504F) + kRounds;
  const float n = shifted - kRounds;
  const float r = (x - (n * 0.693359375F)) - (n * -2.12194440e-4F);
  float p = 1.9875691500e-4F;
  p = (p * r) + 1.3981999507e-3F;
  p = (p * r) + 8.3334519073e-3F;
  p = (p * r) + 4.1665795894e-2F;
  p = (p * r) + 1.6666665459e-1F;
  p = (p * r) + 5.0000001201e-1F;
  p = ((p * r * r) + r) + 1;
  const uint32_t two_to_n =
      (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000;
  return p * std::bit_cast<float>(two_to_n);
}

constexpr float kCubic = 0.044715F;
constexpr float kTwiceRoot = 1.5957691216F;  // 2 sqrt(2/pi)

/// Limits x to a range in which the exponential is finite. Outside it, GELU is
/// x or 0. A NaN stays a NaN.
LOCKSTEP_INLINE float limited(float x) {
  x = x < -10 ? -10 : x;
  return x > 10 ? 10 : x;
}

/// Returns (1 + tanh(u)) / 2 for GELU's u, which is the sigmoid of 2u. Takes a
/// limited x.
LOCKSTEP_INLINE float gate(float x) {
  return 1 / (1 + exponential(-kTwiceRoot * (x + (kCubic * x * x * x))));
}

template <class T>
LOCKSTEP_INLINE void forward_loop(const T* __restrict x, T* __restrict y,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = load(x[i]);
    store(value * gate(limited(value)), y[i]);
  }
}

template <class T>
LOCKSTEP_INLINE void backward_loop(const T* __restrict x,
                                   const T* __restrict upstream,
                                   T* __restrict gradient, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = limited(load(x[i]));
    const float g = gate(value);
    const float slope = kTwiceRoot * (1 + (3 * kCubic * value * value));
    const float bend = value * g * (1 - g) * slope;
    store(load(upstream[i]) * (g + bend), gradient[i]);
  }
}

template <class T>
struct Loops {
  void (*forward)(const T* x, T* y, int64_t count);
  void (*backward)(const T* x, const T* upstream, T* gradient, int64_t count);
};

template <class T>
void plain_forward(const T* x, T* y, int64_t count) {
  forward_loop(x, y, count);
}
template <class T>
void plain_backward(const T* x, const T* upstream, T* gradient, int64_t count) {
  backward_loop(x, upstream, gradient, count);
}

#if defined(__x86_64__)

#define LOCKSTEP_AVX2 [[gnu::target("avx2")]]
#define LOCKSTEP_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]]

template <class T>
LOCKSTEP_AVX2 void avx2_forward(const T* x, T* y, int64_t count) {
  forward_loop(x, y, count);
}
template <class T>
LOCKSTEP_AVX2 void avx2_backward(const T* x, const T* upstream, T* gradient,
                                 int64_t count) {
  backward_loop(x, upstream, gradient, count);
}
template <class T>
LOCKSTEP_AVX512 void avx512_forward(const T* x, T* y, int64_t count) {
  forward_loop(x, y, count);
}
template <class T>
LOCKSTEP_AVX512 void avx512_backward(const T* x, const T* upstream, T* gradient,
                                     int64_t count) {
  backward_loop(x, upstream, gradient, count);
}

#endif

template <class T>
Loops<T> best_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return {avx512_forward<T>, avx512_backward<T>};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {avx2_forward<T>, avx2_backward<T>};
  }
#endif
  return {plain_forward<T>, plain_backward<T>};
}

bool has_loops(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == torch::kFloat32 ||
                        x.scalar_type() == torch::kBFloat16);
}

/// Runs `loop(begin, end)` over parts of [0, count) in the intra-op threads.
template <class Loop>
void for_parts(int64_t count, const Loop& loop) {
  intra_op_for((count + kGrain - 1) / kGrain, [&](int64_t begin, int64_t end) {
    loop(begin * kGrain, std::min(end * kGrain, count));
  });
}

template <class T>
void forward_into(const Tensor& x, Tensor& y) {
  static const Loops<T> loops = best_loops<T>();
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  for_parts(x.numel(), [&](int64_t begin, int64_t end) {
    loops.forward(from + begin, to + begin, end - begin);
  });
}

template <class T>
void backward_into(const Tensor& x, const Tensor& upstream, Tensor& gradient) {
  static const Loops<T> loops = best_loops<T>();
  const T* from = x.const_data_ptr<T>();
  const T* above = upstream.const_data_ptr<T>();
  T* to = gradient.mutable_data_ptr<T>();
  for_parts(x.numel(), [&](int64_t begin, int64_t end) {
    loops.backward(from + begin, above + begin, to + begin, end - begin);
  });
}

class TanhGelu : public torch::autograd::Function<TanhGelu> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const Tensor x = input.contiguous();
    context->save_for_backward({x});
    Tensor y = torch::empty_like(x);
    if (x.scalar_type() == torch::kFloat32) {
      forward_into<float>(x, y);
    } else {
      forward_into<c10::BFloat16>(x, y);
    }
    return y;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const Tensor x = context->get_saved_variables()[0];
    // With a graph, for second derivatives.
    if (torch::GradMode::is_enabled()) {
      return {at::gelu_backward(upstreams[0], x, "tanh")};
    }
    const Tensor upstream = upstreams[0].to(x.scalar_type()).contiguous();
    Tensor gradient = torch::empty_like(x);
    if (x.scalar_type() == torch::kFloat32) {
      backward_into<float>(x, upstream, gradient);
    } else {
      backward_into<c10::BFloat16>(x, upstream, gradient);
    }
    return {gradient};
  }
};

}  // namespace

Tensor tanh_gelu(const Tensor& x) {
  return has_loops(x) ? TanhGelu::apply(x) : torch::gelu(x, "tanh");
}

}  // namespace lockstep::models
