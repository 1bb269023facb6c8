#include "lockstep/lm/models/norm.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include <torch/csrc/autograd/custom_function.h>

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

/// Rows of a matrix (rows, width), and what the kernels read and write.
/// Pointers to what is not there are null.
template <class Delta, class Normed>
struct NormForwardRows {
  const float* x;
  const Delta* delta;
  const float* bias;
  const float* weight;
  const float* shift;
  float* sum;
  Normed* normed;
  float* mean;     // of a row
  float* inverse;  // 1 / deviation of a row
  int64_t width;
  float epsilon;
  bool has_mean;
};

struct NormForward {
  template <class Delta, class Normed>
  LOCKSTEP_INLINE static void run(const NormForwardRows<Delta, Normed>* rows,
                                  int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) one_row(*rows, row);
  }

  template <class Delta, class Normed>
  LOCKSTEP_INLINE static void one_row(
      const NormForwardRows<Delta, Normed>& rows, int64_t row) {
    const int64_t width = rows.width;
    const int64_t start = row * width;
    const float* values = rows.x + start;
    if (rows.delta != nullptr) {
      const Delta* delta = rows.delta + start;
      float* sum = rows.sum + start;
      for (int64_t i = 0; i < width; i += kLanes) {
        Lanes added = simd::load(delta + i);
        if (rows.bias != nullptr) added = added + simd::load(rows.bias + i);
        simd::store(simd::load(values + i) + added, sum + i);
      }
      values = sum;
    }
    float mean = 0;
    if (rows.has_mean) {
      Lanes total = simd::all(0);
      for (int64_t i = 0; i < width; i += kLanes) {
        total = total + simd::load(values + i);
      }
      mean = simd::sum(total) / static_cast<float>(width);
    }
    Lanes squares = simd::all(0);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Lanes centred = simd::load(values + i) - mean;
      squares = squares + (centred * centred);
    }
    const float variance = simd::sum(squares) / static_cast<float>(width);
    const float inverse = 1 / __builtin_sqrtf(variance + rows.epsilon);
    Normed* normed = rows.normed + start;
    for (int64_t i = 0; i < width; i += kLanes) {
      Lanes value = (simd::load(values + i) - mean) * inverse;
      value = value * simd::load(rows.weight + i);
      if (rows.shift != nullptr) value = value + simd::load(rows.shift + i);
      simd::store(value, normed + i);
    }
    rows.mean[row] = mean;
    rows.inverse[row] = inverse;
  }
};

template <class Delta, class Normed>
struct NormBackwardRows {
  const float* sum;
  const float* weight;
  const float* mean;
  const float* inverse;
  const float* sum_gradient;      // null: 0
  const Normed* normed_gradient;  // null: 0
  float* x_gradient;
  Delta* delta_gradient;  // null if that of x is also delta's
  float* weight_sums;     // for each block of rows: (blocks, 3, width)
  int64_t width;
  int64_t rows;
  bool has_mean;
};

struct NormBackward {
  template <class Delta, class Normed>
  LOCKSTEP_INLINE static void run(const NormBackwardRows<Delta, Normed>* rows,
                                  int64_t first, int64_t last) {
    for_rows_of_blocks(first, last, rows->rows,
                       [=](int64_t block, int64_t row) LOCKSTEP_INLINE_LAMBDA {
                         one_row(*rows, row,
                                 rows->weight_sums + (block * 3 * rows->width));
                       });
  }

  template <class Delta, class Normed>
  LOCKSTEP_INLINE static void one_row(
      const NormBackwardRows<Delta, Normed>& rows, int64_t row, float* sums) {
    const int64_t width = rows.width;
    const int64_t start = row * width;
    const float mean = rows.mean[row];
    const float inverse = rows.inverse[row];
    const float* values = rows.sum + start;
    const Normed* above = rows.normed_gradient + start;
    float* weight_sums = sums;
    float* shift_sums = sums + width;
    float* bias_sums = sums + (2 * width);
    Lanes total = simd::all(0);
    Lanes along = simd::all(0);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Lanes normal = (simd::load(values + i) - mean) * inverse;
      const Lanes upstream = simd::load(above + i);
      const Lanes scaled = upstream * simd::load(rows.weight + i);
      total = total + scaled;
      along = along + (scaled * normal);
      simd::store(simd::load(weight_sums + i) + (upstream * normal),
                  weight_sums + i);
      simd::store(simd::load(shift_sums + i) + upstream, shift_sums + i);
    }
    const auto count = static_cast<float>(width);
    const float common = rows.has_mean ? simd::sum(total) / count : 0;
    const float slope = simd::sum(along) / count;
    for (int64_t i = 0; i < width; i += kLanes) {
      const Lanes normal = (simd::load(values + i) - mean) * inverse;
      const Lanes scaled = simd::load(above + i) * simd::load(rows.weight + i);
      Lanes gradient = ((scaled - common) - (normal * slope)) * inverse;
      if (rows.sum_gradient != nullptr) {
        gradient = gradient + simd::load(rows.sum_gradient + start + i);
      }
      simd::store(gradient, rows.x_gradient + start + i);
      if (rows.delta_gradient != nullptr) {
        simd::store(gradient, rows.delta_gradient + start + i);
      }
      simd::store(simd::load(bias_sums + i) + gradient, bias_sums + i);
    }
  }
};

int64_t row_count(const Tensor& x) { return x.numel() / x.size(-1); }

/// Calls `task(first, last)` on parts of the rows, or of blocks of them.
void for_rows(int64_t count, int64_t width, int64_t rows_of_one,
              const std::function<void(int64_t, int64_t)>& task) {
  // Elements that are worth a thread.
  constexpr int64_t kGrain = 16384;
  if (count * rows_of_one * width <= kGrain) {
    task(0, count);
  } else {
    intra_op_for(count, task);
  }
}

template <class T>
T* data_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<std::remove_const_t<T>>() : nullptr;
}

/// Calls use(Delta{}, Normed{}) with the C++ types of the two tensors.
template <class Use>
void with_types(torch::ScalarType delta, torch::ScalarType normed,
                const Use& use) {
  with_type(delta, [&](auto delta_type) {
    with_type(normed, [&](auto normed_type) { use(delta_type, normed_type); });
  });
}

torch::ScalarType type_of_delta(const Tensor& delta) {
  return delta.defined() ? delta.scalar_type() : torch::kFloat32;
}

struct NormGradients {
  Tensor sum, weight, shift;
};

/// Computes the gradients with LibTorch's operators, so that they have a graph.
NormGradients plain_gradients(const Tensor& sum, const Tensor& weight,
                              double epsilon, bool has_mean,
                              const Tensor& normed_gradient) {
  const auto mean_of_row = [](const Tensor& x) {
    return x.mean(-1, /*keepdim=*/true);
  };
  const auto sum_of_rows = [](const Tensor& x) {
    return x.reshape({-1, x.size(-1)}).sum(0);
  };
  const Tensor centred = has_mean ? sum - mean_of_row(sum) : sum;
  const Tensor inverse = torch::rsqrt(mean_of_row(centred.square()) + epsilon);
  const Tensor normal = centred * inverse;
  const Tensor upstream = normed_gradient.to(torch::kFloat32);
  const Tensor scaled = upstream * weight;
  Tensor slope = scaled - normal * mean_of_row(scaled * normal);
  if (has_mean) slope = slope - mean_of_row(scaled);
  return {slope * inverse, sum_of_rows(upstream * normal),
          sum_of_rows(upstream)};
}

class AddAndNorm : public torch::autograd::Function<AddAndNorm> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const std::optional<Tensor>& delta_or_none,
                               const std::optional<Tensor>& bias_or_none,
                               const Tensor& weight,
                               const std::optional<Tensor>& shift_or_none,
                               double epsilon, bool has_mean,
                               torch::ScalarType type) {
    const Tensor delta = delta_or_none.value_or(Tensor());
    const Tensor bias = bias_or_none.value_or(Tensor());
    const Tensor shift = shift_or_none.value_or(Tensor());
    const int64_t width = x.size(-1);
    const int64_t rows = row_count(x);
    const Tensor values = x.contiguous();
    const Tensor added = delta.defined() ? delta.contiguous() : delta;
    const Tensor sum = delta.defined() ? torch::empty_like(values) : values;
    const Tensor normed =
        torch::empty_like(values, values.options().dtype(type));
    const Tensor moments = torch::empty({2, rows}, values.options());
    with_types(type_of_delta(delta), type,
               [&](auto delta_type, auto normed_type) {
                 using Delta = decltype(delta_type);
                 using Normed = decltype(normed_type);
                 const NormForwardRows<Delta, Normed> all{
                     data_of<float>(values),         data_of<Delta>(added),
                     data_of<float>(bias),           data_of<float>(weight),
                     data_of<float>(shift),          data_of<float>(sum),
                     data_of<Normed>(normed),        data_of<float>(moments),
                     data_of<float>(moments) + rows, width,
                     static_cast<float>(epsilon),    has_mean};
                 for_rows(rows, width, 1, [&all](int64_t first, int64_t last) {
                   simd::run<NormForward>(&all, first, last);
                 });
               });
    context->set_materialize_grads(false);
    context->save_for_backward(
        {delta.defined() ? sum : x, moments, weight, shift});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["has_mean"] = has_mean;
    context->saved_data["type"] = static_cast<int64_t>(type);
    context->saved_data["delta"] = static_cast<int64_t>(
        delta.defined() ? delta.scalar_type() : torch::ScalarType::Undefined);
    context->saved_data["has_bias"] = bias.defined();
    // Autograd makes a view of x if x is the sum.
    return {delta.defined() ? sum : x, normed};
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const variable_list saved = context->get_saved_variables();
    const Tensor sum = saved[0].contiguous();
    const Tensor& weight = saved[2];
    const Tensor& shift = saved[3];
    const bool has_mean = context->saved_data["has_mean"].toBool();
    const auto type =
        static_cast<torch::ScalarType>(context->saved_data["type"].toInt());
    const auto delta =
        static_cast<torch::ScalarType>(context->saved_data["delta"].toInt());
    const bool has_delta = delta != torch::ScalarType::Undefined;
    const bool has_bias = context->saved_data["has_bias"].toBool();
    Tensor x_gradient, delta_gradient, bias_gradient, weight_gradient,
        shift_gradient;
    if (torch::GradMode::is_enabled()) {
      if (upstreams[1].defined()) {
        const double epsilon = context->saved_data["epsilon"].toDouble();
        const NormGradients plain =
            plain_gradients(sum, weight, epsilon, has_mean, upstreams[1]);
        x_gradient = plain.sum;
        weight_gradient = plain.weight;
        if (shift.defined()) shift_gradient = plain.shift;
      }
      if (upstreams[0].defined()) {
        x_gradient =
            x_gradient.defined() ? x_gradient + upstreams[0] : upstreams[0];
      }
      if (has_delta && x_gradient.defined()) {
        delta_gradient = x_gradient.to(delta);
        if (has_bias) {
          bias_gradient = x_gradient.reshape({-1, x_gradient.size(-1)}).sum(0);
        }
      }
    } else {
      const int64_t width = sum.size(-1);
      const int64_t rows = row_count(sum);
      const int64_t blocks = sum_blocks(rows);
      const Tensor above = upstreams[0].defined()
                               ? upstreams[0].to(torch::kFloat32).contiguous()
                               : Tensor();
      const Tensor normed_above =
          upstreams[1].defined()
              ? upstreams[1].to(type).contiguous()
              : torch::zeros_like(sum, sum.options().dtype(type));
      x_gradient = torch::empty_like(sum);
      if (has_delta && delta != torch::kFloat32) {
        delta_gradient = torch::empty_like(sum, sum.options().dtype(delta));
      }
      const Tensor parts = torch::zeros({blocks, 3, width}, sum.options());
      with_types(has_delta ? delta : torch::kFloat32, type,
                 [&](auto delta_type, auto normed_type) {
                   using Delta = decltype(delta_type);
                   using Normed = decltype(normed_type);
                   const NormBackwardRows<Delta, Normed> all{
                       data_of<float>(sum),
                       data_of<float>(weight),
                       data_of<float>(saved[1]),
                       data_of<float>(saved[1]) + rows,
                       data_of<float>(above),
                       data_of<Normed>(normed_above),
                       data_of<float>(x_gradient),
                       data_of<Delta>(delta_gradient),
                       data_of<float>(parts),
                       width,
                       rows,
                       has_mean};
                   for_rows(blocks, width, kRowsOfSum,
                            [&all](int64_t first, int64_t last) {
                              simd::run<NormBackward>(&all, first, last);
                            });
                 });
      const Tensor sums =
          sum_in_order(parts.view({blocks, 3 * width})).view({3, width});
      weight_gradient = sums[0];
      if (shift.defined()) shift_gradient = sums[1];
      if (has_bias) bias_gradient = sums[2];
      if (has_delta && !delta_gradient.defined()) delta_gradient = x_gradient;
    }
    return {x_gradient,
            delta_gradient,
            bias_gradient,
            weight_gradient,
            shift_gradient,
            {},
            {},
            {}};
  }
};

struct AddBias {
  template <class Delta>
  LOCKSTEP_INLINE static void run(const float* x, const Delta* delta,
                                  const float* bias, float* sum, int64_t width,
                                  int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t at = (row * width) + i;
        const Lanes added = simd::load(delta + at) + simd::load(bias + i);
        simd::store(simd::load(x + at) + added, sum + at);
      }
    }
  }
};

/// Rounds a gradient to the type of delta, if it is another, and adds its rows
/// in blocks.
struct AddBiasBackward {
  template <class Delta>
  LOCKSTEP_INLINE static void run(const float* upstream, Delta* gradient,
                                  float* parts, int64_t width, int64_t rows,
                                  int64_t first, int64_t last) {
    for_rows_of_blocks(first, last, rows,
                       [=](int64_t block, int64_t row) LOCKSTEP_INLINE_LAMBDA {
                         float* sums = parts + (block * width);
                         for (int64_t i = 0; i < width; i += kLanes) {
                           const int64_t at = (row * width) + i;
                           const Lanes value = simd::load(upstream + at);
                           if (gradient != nullptr)
                             simd::store(value, gradient + at);
                           simd::store(simd::load(sums + i) + value, sums + i);
                         }
                       });
  }
};

class AddWithBias : public torch::autograd::Function<AddWithBias> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const Tensor& delta, const Tensor& bias) {
    context->saved_data["delta"] = static_cast<int64_t>(delta.scalar_type());
    const Tensor values = x.contiguous();
    const Tensor added = delta.contiguous();
    const Tensor sum = torch::empty_like(values);
    with_types(
        type_of_delta(delta), torch::kFloat32, [&](auto delta_type, auto) {
          using Delta = decltype(delta_type);
          const int64_t width = x.size(-1);
          for_rows(row_count(x), width, 1, [&](int64_t first, int64_t last) {
            simd::run<AddBias, const float*, const Delta*>(
                data_of<const float>(values), data_of<const Delta>(added),
                data_of<const float>(bias), data_of<float>(sum), width, first,
                last);
          });
        });
    return sum;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& upstreams) {
    const auto type =
        static_cast<torch::ScalarType>(context->saved_data["delta"].toInt());
    const int64_t width = upstreams[0].size(-1);
    if (torch::GradMode::is_enabled()) {
      return {upstreams[0], upstreams[0].to(type),
              upstreams[0].reshape({-1, width}).sum(0)};
    }
    const Tensor upstream = upstreams[0].to(torch::kFloat32).contiguous();
    const int64_t rows = row_count(upstream);
    const int64_t blocks = sum_blocks(rows);
    const Tensor parts = torch::zeros({blocks, width}, upstream.options());
    Tensor gradient;
    if (type != torch::kFloat32) {
      gradient = torch::empty_like(upstream, upstream.options().dtype(type));
    }
    with_types(type, torch::kFloat32, [&](auto delta_type, auto) {
      using Delta = decltype(delta_type);
      for_rows(blocks, width, kRowsOfSum, [&](int64_t first, int64_t last) {
        simd::run<AddBiasBackward, const float*, Delta*>(
            data_of<const float>(upstream), data_of<Delta>(gradient),
            data_of<float>(parts), width, rows, first, last);
      });
    });
    return {upstream, gradient.defined() ? gradient : upstream,
            sum_in_order(parts)};
  }
};

}  // namespace

NormedSum add_and_norm(const Tensor& x, const Tensor& delta, const Tensor& bias,
                       const Tensor& weight, const Tensor& shift,
                       double epsilon, NormKind kind, torch::ScalarType type) {
  // Autograd takes no undefined tensors.
  const auto optional = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const auto both = AddAndNorm::apply(x, optional(delta), optional(bias),
                                      weight, optional(shift), epsilon,
                                      kind == NormKind::kLayer, type);
  return {both[0], both[1]};
}

Tensor add_with_bias(const Tensor& x, const Tensor& delta, const Tensor& bias) {
  return AddWithBias::apply(x, delta, bias);
}

}  // namespace lockstep::models
