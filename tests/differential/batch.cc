#include "tests/differential/batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

constexpr int64_t kTableRows = 4;

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

/// What a strategy gathers or averages is defined for samples.
void check_samples(const Tensor& output, int64_t samples) {
  TORCH_CHECK(output.dim() > 0 && output.size(0) == samples,
              "the first output is not one of ", samples, " samples");
}

/// `target` in the shape of `output`, whose first dimension is the samples.
Tensor target_like(const Tensor& target, const Tensor& output) {
  std::vector<int64_t> shape(static_cast<size_t>(output.dim()), 1);
  shape[0] = output.size(0);
  return target.to(output.scalar_type()).view(shape);
}

Tensor term_of(const Case& of, const Tensor& output, const Tensor& target,
               bool is_first) {
  if (of.loss == "sum") return mean_of(real_of(output));
  if (of.loss == "dot") {
    return mean_of(real_of(is_first ? output * target_like(target, output)
                                    : output * 0.7));
  }
  return mean_of(squares_of(is_first ? output - target_like(target, output)
                                     : output - 0.3));
}

}  // namespace

IValue Batch::nested_inputs(const Case& of) const {
  return nest(inputs, of.input_nesting, is_none);
}

IValue Batch::nested_target() const {
  return c10::ivalue::Tuple::create(target, marks);
}

Batch Batch::part(int64_t begin, int64_t count) const {
  const auto cut = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
  };
  Batch result{.samples = count, .inputs = {}, .is_none = is_none};
  for (const Tensor& input : inputs) result.inputs.push_back(cut(input));
  result.target = cut(target);
  result.marks = cut(marks);
  result.residual = residual;
  return result;
}

Batch Batch::detached() const {
  Batch result = *this;
  for (Tensor& input : result.inputs) {
    if (!input.defined()) continue;
    const bool requires_grad = input.requires_grad();
    input = input.detach().clone().requires_grad_(requires_grad);
  }
  return result;
}

Batch make_batch(const Case& of, size_t event, size_t micro, int64_t samples,
                 torch::Dtype dtype, Flaw flaw, int64_t flawed_sample) {
  auto generator = at::detail::createCPUGenerator(of.seed * 7919 + event * 131 +
                                                  micro * 17 + 1);
  const auto wide =
      c10::isComplexType(dtype) ? torch::kComplexDouble : torch::kDouble;
  Batch batch{.samples = samples, .inputs = {}, .is_none = {}};
  const Tensor flags = torch::zeros({samples}, torch::kDouble);
  if (flaw != Flaw::kNone) flags[flawed_sample] = 1;
  bool is_poisoned = false;
  for (const InputSpec& spec : of.inputs) {
    std::vector<int64_t> shape{samples};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    Tensor input;
    if (spec.kind == "real") {
      input = torch::randn(shape, generator, torch::TensorOptions().dtype(wide))
                  .to(dtype);
      if (flaw == Flaw::kNotFinite && !is_poisoned) {
        input[flawed_sample].fill_(std::numeric_limits<double>::quiet_NaN());
        is_poisoned = true;
      }
      input.requires_grad_(spec.requires_grad);
    } else if (spec.kind == "index") {
      input = torch::randint(kTableRows, shape, generator,
                             torch::TensorOptions().dtype(torch::kLong));
    } else if (spec.kind == "marks") {
      input = flaw == Flaw::kInBackward ? flags : torch::zeros_like(flags);
    }
    batch.inputs.push_back(input);
    batch.is_none.push_back(spec.kind == "none");
  }
  batch.target = torch::randn({samples}, generator,
                              torch::TensorOptions().dtype(torch::kDouble));
  batch.marks = flaw == Flaw::kInLoss ? flags : torch::zeros_like(flags);
  return batch;
}

Tensor loss_of(const Case& of, const IValue& outputs, const IValue& target,
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
  if (of.loss == "force") {
    const auto forces = torch::autograd::grad({leaves[0].sum()}, {x}, {},
                                              /*retain_graph=*/true,
                                              /*create_graph=*/true);
    return forces[0].pow(2).sum() / std::max<int64_t>(1, x.numel());
  }
  Tensor total = term_of(of, leaves[0], wanted, true);
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (leaves[i].defined()) total = total + term_of(of, leaves[i], {}, false);
  }
  if (of.has_l2) {
    for (const Tensor& parameter : parameters) {
      total = total + 0.05 * squares_of(parameter).sum().to(total.dtype());
    }
  }
  return total;
}

bool backward_with_gradients(const Case& of, const IValue& outputs,
                             const Batch& batch) {
  std::vector<Tensor> leaves = leaves_of(outputs);
  check_samples(leaves[0], batch.samples);
  if (batch.residual.defined()) leaves[0] = leaves[0] + batch.residual;
  if (batch.marks.ne(0).any().item<bool>()) {
    throw std::runtime_error("marked sample in the loss");
  }
  auto generator = at::detail::createCPUGenerator(of.seed + 5);
  std::vector<Tensor> roots;
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].defined() || !leaves[i].requires_grad()) continue;
    roots.push_back(leaves[i]);
    // Of scalars, which are gathered to a vector, each counts alike.
    const double count = static_cast<double>(
        std::max<int64_t>(1, leaves[i].dim() > 0 ? leaves[i].size(0) : 1));
    gradients.push_back(
        i > 0 ? torch::full_like(leaves[i], 0.7 / count)
              : torch::randn(leaves[i].sizes(), generator,
                             torch::TensorOptions().dtype(torch::kDouble))
                    .to(leaves[i].scalar_type())
                    .div(count));
  }
  std::vector<Tensor> copies;
  for (const Tensor& gradient : gradients) copies.push_back(gradient.clone());
  torch::autograd::backward(roots, gradients);
  bool has_changed = false;
  for (size_t i = 0; i < copies.size(); ++i) {
    has_changed = has_changed || !torch::equal(copies[i], gradients[i]);
  }
  return has_changed;
}

std::vector<int64_t> chunks_of(int64_t samples, int64_t shards) {
  if (samples == 0) return {0};
  const int64_t most = (samples + shards - 1) / shards;
  std::vector<int64_t> sizes;
  for (int64_t left = samples; left > 0; left -= most) {
    sizes.push_back(std::min(most, left));
  }
  return sizes;
}

}  // namespace lockstep::differential
