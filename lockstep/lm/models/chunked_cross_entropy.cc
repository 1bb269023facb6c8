#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/device/autocast.h"
#include "lockstep/lm/models/cross_entropy_rows.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/models/product.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kIgnored = -100;

/// Returns the type in which products are computed.
at::ScalarType product_type(const torch::Tensor& tensor) {
  return autocast_type(tensor.device().type()).value_or(tensor.scalar_type());
}

/// Returns the type for sums and for gradients of sums.
at::ScalarType sum_type(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? torch::kFloat64
                                                 : torch::kFloat32;
}

/// Returns the loss of a chunk, and with `needs_gradient`, turns its logits
/// (rows, V) into their gradients.
torch::Tensor loss_of_chunk(torch::Tensor& logits, const torch::Tensor& target,
                            const torch::Tensor& weights, at::ScalarType wide,
                            bool needs_gradient) {
  const at::ScalarType type = logits.scalar_type();
  if (logits.is_cpu() && (type == at::kFloat || type == at::kBFloat16) &&
      wide == at::kFloat) {
    return torch::full(
        {}, cross_entropy_of_rows(logits, target, weights, needs_gradient),
        weights.options());
  }
  // First the logarithms of the probabilities, then the gradients of the
  // logits, which are the probabilities minus one at the target.
  torch::Tensor values = torch::log_softmax(logits, 1, wide);
  logits.reset();
  const torch::Tensor index = target.unsqueeze(1);
  const torch::Tensor factors = weights.unsqueeze(1);
  const torch::Tensor loss = -(values.gather(1, index) * factors).sum();
  if (needs_gradient) {
    values.exp_().scatter_add_(1, index,
                               torch::full_like(index, -1, values.options()));
    logits = values.mul_(factors).to(type);
  }
  return loss;
}

class ChunkedCrossEntropy
    : public torch::autograd::Function<ChunkedCrossEntropy> {
 public:
  static torch::Tensor forward(AutogradContext* context,
                               const torch::Tensor& hidden,
                               const torch::Tensor& weight,
                               const torch::Tensor& targets,
                               const torch::Tensor& kept, int64_t chunk_rows,
                               bool needs_gradients) {
    const at::ScalarType wide = sum_type(hidden);
    const at::ScalarType type = product_type(hidden);
    const bool is_rounded = hidden.is_cpu() && has_rounded_products();
    // The casts below are the ones that autocast would make, or product().
    const NoAutocast no_autocast;
    const auto cast = [&](const torch::Tensor& tensor) {
      const torch::Tensor narrow = tensor.to(type);
      return is_rounded ? narrow.to(torch::kFloat32) : narrow;
    };
    const torch::Tensor cast_weight = cast(weight);
    // The mean over no targets is 0, and its gradients are 0.
    const torch::Tensor count = kept.sum().clamp_min(1).to(wide);
    torch::Tensor loss = torch::zeros({}, hidden.options().dtype(wide));
    torch::Tensor hidden_gradient;
    torch::Tensor weight_gradient;
    if (needs_gradients) hidden_gradient = torch::empty_like(hidden);
    for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, hidden.size(0));
      const torch::Tensor rows = cast(hidden.slice(0, begin, end));
      // An ignored target has the weight 0, so its class does not matter.
      const torch::Tensor target = targets.slice(0, begin, end).clamp_min(0);
      const torch::Tensor weights = kept.slice(0, begin, end).to(wide) / count;
      torch::Tensor gradient = torch::mm(rows, cast_weight.t());
      loss.add_(
          loss_of_chunk(gradient, target, weights, wide, needs_gradients));
      if (!needs_gradients) continue;
      hidden_gradient.slice(0, begin, end)
          .copy_(torch::mm(gradient, cast_weight));
      if (!weight_gradient.defined()) {
        weight_gradient =
            torch::mm(gradient.t(), rows).to(weight.scalar_type());
      } else if (weight_gradient.scalar_type() == rows.scalar_type()) {
        weight_gradient.addmm_(gradient.t(), rows);
      } else {
        weight_gradient.add_(torch::mm(gradient.t(), rows));
      }
    }
    if (needs_gradients) {
      if (!weight_gradient.defined()) {
        weight_gradient = torch::zeros_like(weight);
      }
      context->save_for_backward({hidden_gradient, weight_gradient});
    }
    return loss;
  }

  static variable_list backward(AutogradContext* context,
                                variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    return {saved[0] * gradients[0], saved[1] * gradients[0], {}, {}, {}, {}};
  }
};

void check_shapes(const torch::Tensor& hidden, const torch::Tensor& weight,
                  const torch::Tensor& targets, int64_t chunk_rows) {
  const bool fits = hidden.dim() == 2 && weight.dim() == 2 &&
                    targets.dim() == 1 && hidden.size(1) == weight.size(1) &&
                    hidden.size(0) == targets.size(0) &&
                    targets.scalar_type() == torch::kInt64 && chunk_rows >= 0;
  if (fits) return;
  throw InvalidArgument(
      "models",
      {.code = ErrorCode::kBadTensor,
       .what = "chunked_cross_entropy can't take these tensors",
       .expected = "hidden (N, W), weight (V, W), targets (N) of int64",
       .got = fmt::format(
           "({}), ({}), ({}) of {}", fmt::join(hidden.sizes(), ", "),
           fmt::join(weight.sizes(), ", "), fmt::join(targets.sizes(), ", "),
           c10::toString(targets.scalar_type()))});
}

[[noreturn]] void refuse_target(const torch::Tensor& targets,
                                const torch::Tensor& is_wrong,
                                int64_t vocabulary) {
  const int64_t row = is_wrong.nonzero()[0].item<int64_t>();
  throw InvalidArgument(
      "models",
      {.code = ErrorCode::kBadTensor,
       .what = fmt::format("chunked_cross_entropy got a target in row {} that "
                           "is no token of the vocabulary",
                           row),
       .expected = fmt::format("0 to {}, or {} for a row that does not count",
                               vocabulary - 1, kIgnored),
       .got = fmt::format("{}", targets[row].item<int64_t>()),
       .fix = fmt::format("replace the value that marks padding by {}: "
                          "targets.masked_fill(targets == value, {})",
                          kIgnored, kIgnored)});
}

/// Returns the rows of equal chunks with at most 16 Mi logits, or 128 rows.
/// Each chunk reads and writes the gradient of the weight, so that they are not
/// smaller.
int64_t usual_chunk_rows(int64_t rows, int64_t vocabulary) {
  constexpr int64_t kLogits = int64_t{16} << 20;
  const int64_t most =
      std::max<int64_t>(128, kLogits / std::max<int64_t>(vocabulary, 1));
  const int64_t chunks = std::max<int64_t>((rows + most - 1) / most, 1);
  return std::max<int64_t>((rows + chunks - 1) / chunks, 1);
}

}  // namespace

WeightedLoss chunked_cross_entropy(const torch::Tensor& hidden,
                                   const torch::Tensor& weight,
                                   const torch::Tensor& targets,
                                   int64_t chunk_rows) {
  check_shapes(hidden, weight, targets, chunk_rows);
  const int64_t vocabulary = weight.size(0);
  const torch::Tensor kept = targets.ne(kIgnored);
  const torch::Tensor is_wrong =
      kept.logical_and(targets.lt(0).logical_or(targets.ge(vocabulary)));
  // Both are read at once, because a read waits for a GPU.
  const torch::Tensor counts =
      torch::stack({kept.sum(), is_wrong.sum()}).to(torch::kCPU);
  if (counts[1].item<int64_t>() > 0) {
    refuse_target(targets, is_wrong, vocabulary);
  }
  const int64_t rows = chunk_rows > 0
                           ? chunk_rows
                           : usual_chunk_rows(hidden.size(0), vocabulary);
  const bool needs_gradients =
      torch::GradMode::is_enabled() &&
      (hidden.requires_grad() || weight.requires_grad());
  return {ChunkedCrossEntropy::apply(hidden, weight, targets, kept, rows,
                                     needs_gradients),
          counts[0].item<double>()};
}

}  // namespace lockstep::models
