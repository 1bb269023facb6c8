#include "lockstep/lm/models/fused_attention.h"

#include <algorithm>
#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/device/intra_op.h"
#include "lockstep/device/simd.h"
#include "lockstep/lm/models/kernels.h"
#include "lockstep/lm/models/small_product.h"

namespace lockstep::models {
namespace {

using simd::kLanes;
using simd::Lanes;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of queries that are computed at once. With fewer, less is computed that
// the causal mask hides.
constexpr int64_t kRows = 32;

/// The sizes of an attention, and where its parts are.
template <class T>
struct Heads {
  const T* qkv;          // (B, T, 3 W)
  const float* bias;     // (3 W)
  T* out;                // (B, T, W)
  float* moments;        // (B, H, 2, T): largest score, 1 / sum of exponentials
  const T* upstream;     // (B, T, W)
  T* qkv_gradient;       // (B, T, 3 W)
  float* bias_gradient;  // (B, 3 W)
  int64_t tokens;
  int64_t heads;
  int64_t head_width;
  float scale;

  int64_t width() const { return heads * head_width; }
  /// The tokens, up to whole vectors.
  int64_t padded() const { return (tokens + kLanes - 1) / kLanes * kLanes; }
};

/// Reads part 0, 1 or 2 of the qkv of a head, with its bias, times `scale`.
template <class T>
LOCKSTEP_INLINE void read_part(const Heads<T>& p, int64_t batch, int64_t head,
                               int64_t part, float scale, float* to) {
  const int64_t column = (part * p.width()) + (head * p.head_width);
  const float* bias = p.bias + column;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const T* from = p.qkv + (((batch * p.tokens) + t) * 3 * p.width()) + column;
    for (int64_t i = 0; i < p.head_width; i += kLanes) {
      const Lanes value = simd::load(from + i) + simd::load(bias + i);
      simd::store(value * scale, to + (t * p.head_width) + i);
    }
  }
}

/// Writes (T, D) transposed: (D, padded T), with zeros after the tokens.
template <class T>
LOCKSTEP_INLINE void transpose(const Heads<T>& p, const float* from,
                               float* to) {
  const int64_t padded = p.padded();
  for (int64_t d = 0; d < p.head_width; ++d) {
    for (int64_t t = 0; t < p.tokens; ++t) {
      to[(d * padded) + t] = from[(t * p.head_width) + d];
    }
    for (int64_t t = p.tokens; t < padded; ++t) to[(d * padded) + t] = 0;
  }
}

/// Makes probabilities from `end` scores of token `t`, those of later tokens
/// are 0. With `moments_given`, its largest score and sum are those of the
/// forward.
LOCKSTEP_INLINE void soften(float* scores, int64_t t, int64_t end,
                            float& largest, float& inverse,
                            bool moments_given) {
  constexpr float kMin = -87;  // exp(-87) is about 1e-38
  if (!moments_given) {
    Lanes most = simd::all(-INFINITY);
    for (int64_t i = 0; i < end; i += kLanes) {
      const Lanes seen =
          simd::first_lanes(simd::load(scores + i), t + 1 - i, -INFINITY);
      most = simd::most(most, seen);
    }
    largest = simd::largest(most);
  }
  Lanes total = simd::all(0);
  for (int64_t i = 0; i < end; i += kLanes) {
    // A hidden score may be larger than the largest one.
    const Lanes seen =
        simd::first_lanes(simd::load(scores + i) - largest, t + 1 - i, kMin);
    const Lanes value = simd::first_lanes(
        simd::exponential(simd::most(seen, kMin)), t + 1 - i, 0);
    total = total + value;
    simd::store(value, scores + i);
  }
  if (!moments_given) inverse = 1 / simd::sum(total);
  for (int64_t i = 0; i < end; i += kLanes) {
    simd::store(simd::load(scores + i) * inverse, scores + i);
  }
}

/// Memory for the values of a head, besides the tensors.
struct HeadScratch {
  float* q;       // (T, D), scaled
  float* k;       // (T, D)
  float* v;       // (T, D)
  float* k_flat;  // (D, padded T)
  float* scores;  // (kRows, padded T)
  // In the backward.
  float* v_flat;  // (D, padded T)
  float* slopes;  // (kRows, padded T)
  float* out;     // (T, D), in the backward its gradient
  float* dq;      // (T, D)
  float* dk;      // (T, D)
  float* dv;      // (T, D)
};

template <class T>
HeadScratch part_of(const Heads<T>& p, float* memory) {
  const int64_t size = p.padded() * p.head_width;
  const int64_t rows = kRows * p.padded();
  HeadScratch s{};
  for (float** place :
       {&s.q, &s.k, &s.v, &s.k_flat, &s.v_flat, &s.out, &s.dq, &s.dk, &s.dv}) {
    *place = memory;
    memory += size;
  }
  s.scores = memory;
  s.slopes = memory + rows;
  return s;
}

template <class T>
int64_t scratch_size(const Heads<T>& p) {
  return (9 * p.padded() * p.head_width) + (2 * kRows * p.padded());
}

/// Computes the probabilities of the queries from `first` to `last`. Columns
/// from `last`, rounded up to whole vectors, are not used.
template <class T>
LOCKSTEP_INLINE int64_t probabilities(const Heads<T>& p, const HeadScratch& s,
                                      int64_t place, int64_t first,
                                      int64_t last, bool moments_given) {
  const int64_t padded = p.padded();
  const int64_t used = (last + kLanes - 1) / kLanes * kLanes;
  simd::multiply({s.q + (first * p.head_width), p.head_width}, s.k_flat, padded,
                 s.scores, padded, last - first, p.head_width, used, false);
  float* largest = p.moments + (place * 2 * p.tokens);
  float* inverse = largest + p.tokens;
  for (int64_t t = first; t < last; ++t) {
    soften(s.scores + ((t - first) * padded), t, used, largest[t], inverse[t],
           moments_given);
  }
  return used;
}

/// Calls Body::one_head() for the heads from `begin` to `end` of all sequences,
/// with their queries, keys and values in the scratch memory.
template <class Body>
struct EachHead {
  template <class T>
  LOCKSTEP_INLINE static void run(const Heads<T>* all, float* memory,
                                  int64_t begin, int64_t end) {
    const Heads<T>& p = *all;
    const HeadScratch s = part_of(p, memory);
    for (int64_t place = begin; place < end; ++place) {
      const int64_t batch = place / p.heads;
      const int64_t head = place % p.heads;
      read_part(p, batch, head, 0, p.scale, s.q);
      read_part(p, batch, head, 1, 1, s.k);
      read_part(p, batch, head, 2, 1, s.v);
      transpose(p, s.k, s.k_flat);
      Body::one_head(p, s, place, batch, head);
    }
  }
};

struct AttentionForward {
  template <class T>
  LOCKSTEP_INLINE static void one_head(const Heads<T>& p, const HeadScratch& s,
                                       int64_t place, int64_t batch,
                                       int64_t head) {
    const int64_t width = p.head_width;
    const int64_t padded = p.padded();
    for (int64_t first = 0; first < p.tokens; first += kRows) {
      const int64_t last = std::min(first + kRows, p.tokens);
      probabilities(p, s, place, first, last, false);
      simd::multiply({s.scores, padded}, s.v, width, s.out, width, last - first,
                     last, width, false);
      for (int64_t t = first; t < last; ++t) {
        T* to = p.out + (((batch * p.tokens) + t) * p.width()) + (head * width);
        const float* from = s.out + ((t - first) * width);
        for (int64_t i = 0; i < width; i += kLanes) {
          simd::store(simd::load(from + i), to + i);
        }
      }
    }
  }
};

struct AttentionBackward {
  template <class T>
  LOCKSTEP_INLINE static void one_head(const Heads<T>& p, const HeadScratch& s,
                                       int64_t place, int64_t batch,
                                       int64_t head) {
    const int64_t width = p.head_width;
    const int64_t padded = p.padded();
    transpose(p, s.v, s.v_flat);
    for (int64_t t = 0; t < p.tokens; ++t) {
      const T* from =
          p.upstream + (((batch * p.tokens) + t) * p.width()) + (head * width);
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t at = (t * width) + i;
        simd::store(simd::load(from + i), s.out + at);
        simd::store(simd::all(0), s.dk + at);
        simd::store(simd::all(0), s.dv + at);
      }
    }
    for (int64_t first = 0; first < p.tokens; first += kRows) {
      const int64_t last = std::min(first + kRows, p.tokens);
      const int64_t rows = last - first;
      const int64_t used = probabilities(p, s, place, first, last, true);
      const float* upstream = s.out + (first * width);
      simd::multiply({upstream, width}, s.v_flat, padded, s.slopes, padded,
                     rows, width, used, false);
      simd::multiply({s.scores, 1, padded}, upstream, width, s.dv, width, last,
                     rows, width, true);
      for (int64_t row = 0; row < rows; ++row) {
        slopes_of(s.scores + (row * padded), s.slopes + (row * padded), used);
      }
      simd::multiply({s.slopes, padded}, s.k, width, s.dq + (first * width),
                     width, rows, last, width, false);
      simd::multiply({s.slopes, 1, padded}, s.q + (first * width), width, s.dk,
                     width, last, rows, width, true);
    }
    write_part(p, batch, head, 0, p.scale, s.dq);
    write_part(p, batch, head, 1, 1, s.dk);
    write_part(p, batch, head, 2, 1, s.dv);
  }

  /// Turns the gradients of the probabilities of a row into those of its
  /// scores.
  LOCKSTEP_INLINE static void slopes_of(const float* probabilities,
                                        float* slopes, int64_t count) {
    Lanes total = simd::all(0);
    for (int64_t i = 0; i < count; i += kLanes) {
      total = total + (simd::load(probabilities + i) * simd::load(slopes + i));
    }
    const float mean = simd::sum(total);
    for (int64_t i = 0; i < count; i += kLanes) {
      const Lanes value =
          simd::load(probabilities + i) * (simd::load(slopes + i) - mean);
      simd::store(value, slopes + i);
    }
  }

  template <class T>
  LOCKSTEP_INLINE static void write_part(const Heads<T>& p, int64_t batch,
                                         int64_t head, int64_t part,
                                         float scale, const float* from) {
    const int64_t column = (part * p.width()) + (head * p.head_width);
    float* sums = p.bias_gradient + (batch * 3 * p.width()) + column;
    for (int64_t t = 0; t < p.tokens; ++t) {
      T* to =
          p.qkv_gradient + (((batch * p.tokens) + t) * 3 * p.width()) + column;
      for (int64_t i = 0; i < p.head_width; i += kLanes) {
        const Lanes value = simd::load(from + (t * p.head_width) + i) * scale;
        simd::store(value, to + i);
        simd::store(simd::load(sums + i) + value, sums + i);
      }
    }
  }
};

/// Runs a body for all heads of all sequences in the intra-op threads.
template <class Body, class T>
void for_heads(const Heads<T>& all, int64_t batch) {
  intra_op_for(batch * all.heads, [&](int64_t begin, int64_t end) {
    const Tensor memory = torch::empty({scratch_size(all)}, torch::kFloat32);
    simd::run<EachHead<Body>, const Heads<T>*>(
        &all, memory.mutable_data_ptr<float>(), begin, end);
  });
}

template <class T>
Heads<T> make_heads(const Tensor& qkv, const Tensor& bias,
                    const Tensor& moments, int64_t heads) {
  Heads<T> p{};
  p.qkv = qkv.const_data_ptr<T>();
  p.bias = bias.const_data_ptr<float>();
  p.moments = moments.mutable_data_ptr<float>();
  p.tokens = qkv.size(1);
  p.heads = heads;
  p.head_width = qkv.size(2) / 3 / heads;
  p.scale = 1 / __builtin_sqrtf(static_cast<float>(p.head_width));
  return p;
}

/// Computes the gradient of qkv with LibTorch's operators, so that it has a
/// graph. In float32.
Tensor plain_gradient(const Tensor& qkv, const Tensor& bias, int64_t heads,
                      const Tensor& upstream) {
  const int64_t batch = qkv.size(0);
  const int64_t tokens = qkv.size(1);
  // (B, T, n W) -> (n, B, H, T, D)
  const auto in_heads = [&](const Tensor& x, int64_t parts) {
    return x.view({batch, tokens, parts, heads, -1}).permute({2, 0, 3, 1, 4});
  };
  const auto parts = in_heads(qkv + bias, 3).unbind(0);
  const Tensor above = in_heads(upstream.to(torch::kFloat32), 1)[0];
  const double scale = 1 / std::sqrt(static_cast<double>(parts[0].size(-1)));
  const Tensor is_hidden =
      torch::ones({tokens, tokens}, torch::kBool).triu(/*diagonal=*/1);
  const Tensor scores =
      torch::matmul(parts[0], parts[1].transpose(-2, -1)) * scale;
  const Tensor weights = scores.masked_fill(is_hidden, -INFINITY).softmax(-1);
  const Tensor slopes = torch::matmul(above, parts[2].transpose(-2, -1));
  const Tensor mean = (weights * slopes).sum(-1, /*keepdim=*/true);
  const Tensor gradient = weights * (slopes - mean) * scale;
  return torch::stack({torch::matmul(gradient, parts[1]),
                       torch::matmul(gradient.transpose(-2, -1), parts[0]),
                       torch::matmul(weights.transpose(-2, -1), above)})
      .permute({1, 3, 0, 2, 4})
      .reshape({batch, tokens, -1});
}

class FusedAttention : public torch::autograd::Function<FusedAttention> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& input,
                        const Tensor& bias, int64_t heads) {
    const Tensor qkv = input.contiguous();
    const int64_t batch = qkv.size(0);
    const int64_t tokens = qkv.size(1);
    const Tensor out =
        torch::empty({batch, tokens, qkv.size(2) / 3}, qkv.options());
    const Tensor moments =
        torch::empty({batch, heads, 2, tokens}, torch::kFloat32);
    with_type(qkv.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Heads<T> all = make_heads<T>(qkv, bias, moments, heads);
      all.out = out.mutable_data_ptr<T>();
      for_heads<AttentionForward>(all, batch);
    });
    context->save_for_backward({input, bias, moments});
    context->saved_data["heads"] = heads;
    return out;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const variable_list saved = context->get_saved_variables();
    const Tensor qkv = saved[0].contiguous();
    const Tensor& bias = saved[1];
    const int64_t heads = context->saved_data["heads"].toInt();
    if (torch::GradMode::is_enabled()) {
      const Tensor gradient = plain_gradient(qkv, bias, heads, upstreams[0]);
      return {gradient.to(qkv.scalar_type()),
              gradient.sum(torch::IntArrayRef{0, 1}),
              {}};
    }
    const Tensor upstream = upstreams[0].to(qkv.scalar_type()).contiguous();
    const int64_t batch = qkv.size(0);
    const Tensor gradient = torch::empty_like(qkv);
    const Tensor parts = torch::zeros({batch, qkv.size(2)}, torch::kFloat32);
    with_type(qkv.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Heads<T> all = make_heads<T>(qkv, bias, saved[2], heads);
      all.upstream = upstream.const_data_ptr<T>();
      all.qkv_gradient = gradient.mutable_data_ptr<T>();
      all.bias_gradient = parts.mutable_data_ptr<float>();
      for_heads<AttentionBackward>(all, batch);
    });
    return {gradient, sum_in_order(parts), {}};
  }
};

}  // namespace

bool has_fused_attention(int64_t head_width) {
  return head_width % kLanes == 0;
}

Tensor fused_attention(const Tensor& qkv, const Tensor& bias, int64_t heads) {
  return FusedAttention::apply(qkv, bias, heads);
}

}  // namespace lockstep::models
