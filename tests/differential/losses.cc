#include "tests/differential/losses.h"

#include <algorithm>
#include <cstdint>

#include "lockstep/losses/cross_entropy.h"
#include "tests/differential/interpreted_module.h"
#include "tests/differential/random.h"

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

Tensor mean_of(const Tensor& values) {
  return values.sum() / std::max<int64_t>(1, values.numel());
}

Tensor real_of(const Tensor& values) {
  return values.is_complex() ? torch::real(values) : values;
}

Tensor squares_of(const Tensor& values) {
  return values.is_complex() ? torch::real(values * values.conj())
                             : values * values;
}

/// Throws unless the first output is one of samples: only those are gathered
/// and averaged.
void check_samples(const Tensor& output, int64_t samples) {
  TORCH_CHECK(output.dim() > 0 && output.size(0) == samples,
              "the first output is not one of ", samples, " samples");
}

/// Reshapes `target` so that it broadcasts to `output`, [samples, ...].
Tensor target_like(const Tensor& target, const Tensor& output) {
  std::vector<int64_t> shape(static_cast<size_t>(output.dim()), 1);
  shape[0] = output.size(0);
  return target.to(output.scalar_type()).view(shape);
}

Tensor term_of(const std::string& loss, const Tensor& output,
               const Tensor& target, bool is_first) {
  if (loss == "sum") return mean_of(real_of(output));
  if (loss == "dot") {
    return mean_of(real_of(is_first ? output * target_like(target, output)
                                    : output * 0.7));
  }
  return mean_of(squares_of(is_first ? output - target_like(target, output)
                                     : output - 0.3));
}

/// The loss of a case that is no program.
Tensor mean_loss(const Case& of, const std::string& loss,
                 const std::vector<Tensor>& leaves, const Tensor& target,
                 const std::vector<Tensor>& parameters, const Tensor& x) {
  if (loss == "force") {
    const auto forces = torch::autograd::grad({leaves[0].sum()}, {x}, {},
                                              /*retain_graph=*/true,
                                              /*create_graph=*/true);
    return forces[0].pow(2).sum() / std::max<int64_t>(1, x.numel());
  }
  Tensor total = term_of(loss, leaves[0], target, true);
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (leaves[i].defined()) {
      total = total + term_of(loss, leaves[i], {}, false);
    }
  }
  if (of.has_l2) {
    for (const Tensor& parameter : parameters) {
      total = total + 0.05 * squares_of(parameter).sum().to(total.dtype());
    }
  }
  return total;
}

/// [samples, features]
Tensor rows_of(const Tensor& output) {
  return output.dim() > 1 ? output.flatten(1) : output.unsqueeze(1);
}

/// The square error of each sample.
Tensor errors_of(const std::vector<Tensor>& leaves, const Tensor& target) {
  Tensor errors =
      rows_of((leaves[0] - target_like(target, leaves[0])).pow(2)).mean(1);
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (leaves[i].defined()) {
      errors = errors + rows_of((leaves[i] - 0.3).pow(2)).mean(1);
    }
  }
  return errors;
}

/// Weights of the samples: 0, 1, 2, ...
Tensor weights_of(const Tensor& target) {
  return target.abs().mul(1.5).floor();
}

/// Scores of classes: the features of the first output, and a score that is
/// made of the other outputs.
Tensor logits_of(const std::vector<Tensor>& leaves) {
  const Tensor rows = rows_of(leaves[0]);
  Tensor last = torch::zeros_like(rows.select(1, 0));
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (leaves[i].defined()) last = last + rows_of(leaves[i]).mean(1);
  }
  return torch::cat({rows, last.unsqueeze(1)}, 1);
}

/// A class for each sample; about a third are ignored.
Tensor classes_of(const Tensor& target, int64_t count) {
  const Tensor classes =
      target.abs().mul(7).floor().to(torch::kLong).remainder(count);
  return classes.masked_fill(target.lt(-0.4), -100);
}

WeightedLoss program_loss(const std::string& loss,
                          const std::vector<Tensor>& leaves,
                          const Tensor& target) {
  if (loss == "cross_entropy" || loss == "ignoring") {
    const Tensor logits = logits_of(leaves);
    const Tensor classes = classes_of(target, logits.size(1));
    if (loss == "cross_entropy") return cross_entropy(logits, classes);
    return torch::cross_entropy_loss(logits, classes);
  }
  const Tensor errors = errors_of(leaves, target);
  if (loss == "total" || loss == "summed") return errors.sum();
  if (loss == "contrastive") return (errors.logsumexp(0) - errors).mean();
  if (loss == "noisy") {  // also where the errors are zeros
    return mean_of(errors) * (1 + own_random()) + own_random();
  }
  if (loss == "square") return mean_of(errors);
  if (loss == "weighs") {
    // No two samples have the same weight, so the first batch shows it.
    const Tensor weights = target.abs().add(0.1).to(errors.scalar_type());
    return (errors * weights).sum() / weights.sum();
  }
  const Tensor weights = weights_of(target);
  const Tensor weight = weights.sum();
  const Tensor mean = (errors * weights.to(errors.scalar_type())).sum() /
                      weight.clamp_min(1).to(errors.scalar_type());
  if (loss == "unit_weights") return {mean, 1};
  TORCH_CHECK(loss == "weighted", "no such loss: ", loss);
  return {mean, weight};
}

}  // namespace

bool keeps_contract(const std::string& loss) {
  return std::find(kLosses.begin() + 4, kLosses.end(), loss) == kLosses.end();
}

WeightedLoss loss_of(const Case& of, const std::string& loss,
                     const IValue& outputs, const IValue& target,
                     const std::vector<Tensor>& parameters, const Tensor& x,
                     const Tensor& residual) {
  const Tensor wanted = target.toTupleRef().elements()[0].toTensor();
  const Tensor marks = target.toTupleRef().elements()[1].toTensor();
  if (marks.ne(0).any().item<bool>()) {
    throw std::runtime_error("marked sample in the loss");
  }
  std::vector<Tensor> leaves = leaves_of(outputs);
  check_samples(leaves[0], wanted.size(0));
  if (of.has_residual && residual.defined()) leaves[0] = leaves[0] + residual;
  if (is_program(of)) return program_loss(loss, leaves, wanted);
  return mean_loss(of, loss, leaves, wanted, parameters, x);
}

}  // namespace lockstep::differential
