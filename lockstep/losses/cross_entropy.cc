#include "lockstep/losses/cross_entropy.h"

#include <variant>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using torch::Tensor;
using Options = torch::nn::functional::CrossEntropyFuncOptions;

void check_reduction(const Options& options) {
  if (std::holds_alternative<torch::enumtype::kMean>(options.reduction())) {
    return;
  }
  throw InvalidArgument(
      "losses",
      {.code = ErrorCode::kBadOption,
       .what = "cross_entropy() has another reduction than kMean",
       .expected = "the mean, which is returned with its weight",
       .got = torch::enumtype::get_enum_name(options.reduction()),
       .fix = "for a sum, call torch::nn::functional::cross_entropy and set "
              "loss_reduction(LossReduction::kSum) for the step"});
}

/// Returns the number of predictions in `logits`. Its classes are in dimension
/// 1, or in dimension 0 if there is no other.
double predictions_of(const Tensor& logits) {
  const int64_t class_dim = logits.dim() > 1 ? 1 : 0;
  double predictions = 1;
  for (int64_t dim = 0; dim < logits.dim(); ++dim) {
    if (dim != class_dim) predictions *= static_cast<double>(logits.size(dim));
  }
  return predictions;
}

/// Returns the divisor of torch's mean over the targets. Waits for the device.
double weight_of(const Tensor& logits, const Tensor& targets,
                 const Options& options) {
  const torch::NoGradGuard no_grad;
  // torch distinguishes probabilities from classes in the same way.
  if (logits.sizes() == targets.sizes()) return predictions_of(logits);
  // -100 can't be compared with uint8.
  const Tensor classes = targets.to(torch::kInt64);
  const Tensor is_kept = classes.ne(options.ignore_index());
  if (!options.weight().defined()) return is_kept.sum().item<double>();
  return options.weight()
      .index_select(0, classes.masked_select(is_kept))
      .sum(torch::kFloat64)
      .item<double>();
}

/// Throws InvalidArgument if there are only classes of weight 0 and labels are
/// smoothed. Torch smooths these labels too, and a mean with the weight 0 can't
/// represent their part of the loss.
void check_smoothing(const Tensor& logits, const Tensor& targets,
                     const Options& options) {
  const bool has_classes = logits.sizes() != targets.sizes();
  if (options.label_smoothing() == 0 || !has_classes) return;
  if (!targets.ne(options.ignore_index()).any().item<bool>()) return;
  throw InvalidArgument(
      "losses",
      {.code = ErrorCode::kBadLoss,
       .what =
           "cross_entropy() smooths the labels of targets whose classes all "
           "have the weight 0, so the loss is no weighted mean of parts",
       .expected = "class weights above 0 where label_smoothing is not 0",
       .fix = "set the targets of such classes to ignore_index, or give the "
              "classes a small weight"});
}

}  // namespace

WeightedLoss cross_entropy(const Tensor& logits, const Tensor& targets,
                           const Options& options) {
  check_reduction(options);
  Tensor loss = torch::nn::functional::cross_entropy(logits, targets, options);
  const double weight = weight_of(logits, targets, options);
  if (weight == 0) {
    check_smoothing(logits, targets, options);
    // The sum of no logits is 0, and so are its gradients. `loss` is 0 / 0.
    loss = logits.slice(-1, 0, 0).sum().to(loss.scalar_type());
  }
  return {loss, weight};
}

}  // namespace lockstep
