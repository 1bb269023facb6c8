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

/// Writes GELU(x) to `out`, or with `upstream`, the gradient of x.
template <class T>
using Loop = void (*)(const T* x, const T* upstream, T* out, int64_t count);

template <class T>
LOCKSTEP_INLINE void either_loop(const T* x, const T* upstream, T* out,
                                 int64_t count) {
  if (upstream == nullptr) {
    forward_loop(x, out, count);
  } else {
    backward_loop(x, upstream, out, count);
  }
}

template <class T>
void plain_loop(const T* x, const T* upstream, T* out, int64_t count) {
  either_loop(x, upstream, out, count);
}

#if defined(__x86_64__)

#define LOCKSTEP_AVX2 [[gnu::target("avx2")]]
#define LOCKSTEP_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]]

template <class T>
LOCKSTEP_AVX2 void avx2_loop(const T* x, const T* upstream, T* out,
                             int64_t count) {
  either_loop(x, upstream, out, count);
}
template <class T>
LOCKSTEP_AVX512 void avx512_loop(const T* x, const T* upstream, T* out,
                                 int64_t count) {
  either_loop(x, upstream, out, count);
}

#endif

template <class T>
Loop<T> best_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return avx512_loop<T>;
  }
  if (__builtin_cpu_supports("avx2")) return avx2_loop<T>;
#endif
  return plain_loop<T>;
}

bool has_loops(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == torch::kFloat32 ||
                        x.scalar_type() == torch::kBFloat16);
}

/// Runs the loop over parts of the elements in the intra-op threads. `upstream`
/// is undefined in the forward.
template <class T>
Tensor run_loop(const Tensor& x, const Tensor& upstream) {
  static const Loop<T> loop = best_loop<T>();
  Tensor out = torch::empty_like(x);
  const int64_t count = x.numel();
  const T* from = x.const_data_ptr<T>();
  const T* above = upstream.defined() ? upstream.const_data_ptr<T>() : nullptr;
  T* to = out.mutable_data_ptr<T>();
  intra_op_for((count + kGrain - 1) / kGrain, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain;
    const int64_t end = std::min(last * kGrain, count);
    loop(from + begin, above == nullptr ? nullptr : above + begin, to + begin,
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
    context->save_for_backward({x});
    return compute(x);
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const Tensor x = context->get_saved_variables()[0];
    // With a graph, for second derivatives.
    if (torch::GradMode::is_enabled()) {
      return {at::gelu_backward(upstreams[0], x, "tanh")};
    }
    const Tensor upstream = upstreams[0].to(x.scalar_type()).contiguous();
    return {compute(x, upstream)};
  }
};

}  // namespace

Tensor tanh_gelu(const Tensor& x) {
  return has_loops(x) ? TanhGelu::apply(x) : torch::gelu(x, "tanh");
}

}  // namespace lockstep::models
