#include <algorithm>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/models/language/language_model.h"

namespace lockstep::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kIgnored = -100;

/// Returns the type in which products are computed.
at::ScalarType product_type(const torch::Tensor& tensor) {
  const auto device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device)
             ? at::autocast::get_autocast_dtype(device)
             : tensor.scalar_type();
}

/// Returns the type for sums and for gradients of sums.
at::ScalarType sum_type(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? torch::kFloat64
                                                 : torch::kFloat32;
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
    const at::ScalarType type = product_type(hidden);
    const at::ScalarType wide = sum_type(hidden);
    // The casts below are the ones that autocast would make.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(
        c10::autocast_dispatch_keyset);
    const torch::Tensor cast_weight = weight.to(type);
    // The mean over no targets is 0, and its gradients are 0.
    const torch::Tensor count = kept.sum().clamp_min(1).to(wide);
    torch::Tensor loss = torch::zeros({}, hidden.options().dtype(wide));
    torch::Tensor hidden_gradient;
    torch::Tensor weight_gradient;
    if (needs_gradients) {
      hidden_gradient = torch::empty_like(hidden);
      weight_gradient = torch::zeros_like(weight);
    }
    for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_rows) {
      const int64_t end = std::min(begin + chunk_rows, hidden.size(0));
      const torch::Tensor rows = hidden.slice(0, begin, end).to(type);
      // An ignored target has the weight 0, so its class does not matter.
      const torch::Tensor target =
          targets.slice(0, begin, end).clamp_min(0).unsqueeze(1);
      const torch::Tensor weights =
          (kept.slice(0, begin, end).to(wide) / count).unsqueeze(1);
      // (rows, V): first the logarithms of the probabilities, then the
      // gradients of the logits, which are the probabilities minus one at the
      // target.
      torch::Tensor logits = torch::mm(rows, cast_weight.t());
      torch::Tensor values = torch::log_softmax(logits, 1, wide);
      logits.reset();
      loss.sub_((values.gather(1, target) * weights).sum());
      if (!needs_gradients) continue;
      values.exp_().scatter_add_(
          1, target, torch::full_like(target, -1, values.options()));
      const torch::Tensor gradient = values.mul_(weights).to(type);
      hidden_gradient.slice(0, begin, end)
          .copy_(torch::mm(gradient, cast_weight));
      weight_gradient.add_(torch::mm(gradient.t(), rows));
    }
    if (needs_gradients) {
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
  constexpr int64_t kLogits = int64_t{4} << 20;
  const int64_t rows =
      chunk_rows > 0
          ? chunk_rows
          : std::max<int64_t>(128, kLogits / std::max<int64_t>(vocabulary, 1));
  const bool needs_gradients =
      torch::GradMode::is_enabled() &&
      (hidden.requires_grad() || weight.requires_grad());
  return {ChunkedCrossEntropy::apply(hidden, weight, targets, kept, rows,
                                     needs_gradients),
          counts[0].item<double>()};
}

}  // namespace lockstep::models
