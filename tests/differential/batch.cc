#include "tests/differential/batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lockstep/base/chunk.h"

namespace lockstep::differential {

using c10::IValue;
using torch::Tensor;

namespace {

constexpr int64_t kTableRows = 4;

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

bool backward_with_gradients(const Case& of, const IValue& outputs,
                             const Batch& batch) {
  std::vector<Tensor> leaves = leaves_of(outputs);
  TORCH_CHECK(leaves[0].dim() > 0 && leaves[0].size(0) == batch.samples,
              "the first output is not one of ", batch.samples, " samples");
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
    // If scalars are gathered to a vector, all of them have equal weight.
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

std::pair<int64_t, int64_t> part_of_rank(const Case& of, int64_t samples,
                                         int rank) {
  const auto shards =
      shards_of_worker(rank, static_cast<int>(of.ranks), of.shards);
  const auto part = samples_of(shards, samples, of.shards);
  return {part.first, part.count()};
}

}  // namespace lockstep::differential
