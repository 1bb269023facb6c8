#include "lockstep/parallel/check/loss_check.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/base/error.h"
#include "lockstep/device/autocast.h"
#include "lockstep/parallel/check/module_loss.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// Result of the loss function.
struct Value {
  double loss = 0;
  double weight = 0;
  c10::ScalarType type = c10::ScalarType::Double;
};

/// The combined loss of several parts, weighted by their weights.
struct Combined {
  double loss = 0;
  double weight = 0;
  double largest = 0;  // largest magnitude of a loss
  double sum = 0;      // unweighted sum of the losses
};

Combined combine(const std::vector<Value>& parts, LossReduction reduction) {
  Combined combined;
  for (const Value& part : parts) {
    combined.weight += part.weight;
    if (part.weight == 0) continue;  // its loss may be NaN
    combined.sum += part.loss;
    combined.loss += part.weight * part.loss;
    combined.largest = std::max(combined.largest, std::abs(part.loss));
  }
  if (reduction == LossReduction::kSum) {
    combined.loss = combined.sum;
  } else if (combined.weight != 0) {
    combined.loss /= combined.weight;
  }
  return combined;
}

/// Returns the relative difference that rounding may cause between two
/// computations of one loss.
double tolerance_of(c10::ScalarType type) {
  if (c10::isReducedFloatingType(type)) return 2e-2;
  if (has_autocast()) return 1e-3;
  return type == c10::ScalarType::Double ? 1e-9 : 1e-5;
}

double epsilon_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return std::numeric_limits<double>::epsilon();
    case c10::ScalarType::Half:
      return std::numeric_limits<c10::Half>::epsilon();
    case c10::ScalarType::BFloat16:
      return std::numeric_limits<c10::BFloat16>::epsilon();
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

/// Returns the largest magnitude of an element in `value`.
double largest_in(const IValue& value) {
  double largest = 0;
  for (const auto& [tensor, path, is_shared] : tensors_in(value)) {
    if (tensor.numel() == 0 || !tensor.is_floating_point()) continue;
    largest = std::max(largest, tensor.abs().max().item<double>());
  }
  return largest;
}

bool any_tensor(const IValue& value, bool (*is_one)(const Tensor&)) {
  const auto tensors = tensors_in(value);
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const TensorAtPath& at) { return is_one(at.tensor); });
}

bool is_differentiable(const Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

bool is_reduced(const Tensor& tensor) {
  return c10::isReducedFloatingType(tensor.scalar_type());
}

/// Returns `value` with half and bfloat16 tensors converted to float.
IValue widened(const IValue& value) {
  const auto widen = [](const Tensor& tensor) {
    return is_reduced(tensor) ? tensor.to(torch::kFloat) : tensor;
  };
  return map_tensors(value, widen);
}

/// A batch, or a part of it, is a tuple of the output and the target.
IValue batch_of(const IValue& output, const IValue& target) {
  return c10::ivalue::Tuple::create(output, target);
}
const IValue& output_of(const IValue& batch) {
  return batch.toTupleRef().elements()[0];
}
const IValue& target_of(const IValue& batch) {
  return batch.toTupleRef().elements()[1];
}

// Limits the calls of the loss function for single samples, which are cheap but
// not free.
constexpr int64_t kMaxParts = 256;

/// Compares the loss of all samples with the losses of parts of them.
class LossCheck {
 public:
  LossCheck(const ComputedShards& shards, Findings& findings)
      : shards_(shards), findings_(findings) {}

  std::optional<IValue> run() {
    if (samples() == 0) return std::nullopt;
    std::optional<IValue> sample;
    std::optional<Value> whole;
    std::vector<Value> per_shard;
    Losses sample_values;
    std::optional<Mismatch> gradient_mismatch;
    try {
      const IValue batch = batch_of(whole_output(), whole_target());
      if (needs_other_ranks()) sample = part(batch, 0, 1);
      if (shards_.passes.size() > 1) {
        whole = call(batch, samples());
        for (const ShardPass& pass : shards_.passes) {
          per_shard.push_back(value_of(pass));
        }
      } else {
        whole = value_of(shards_.passes.front());
      }
      sample_values = losses_of_samples(batch, *whole);
      gradient_mismatch = compare_gradients_of_samples(batch);
    } catch (const std::exception& error) {
      fail(
          fmt::format("the loss function can't take the outputs of several "
                      "shards ({})",
                      text_of(error)));
    }
    // Always call it: values that the function records are then those of the
    // first shard again.
    const bool is_repeatable = gives_the_same_again();
    if (!whole) return sample;
    if (!is_repeatable) {
      fail(
          "the loss function gives another loss each time that it is called "
          "with the same output and target (it draws random numbers, or counts "
          "its calls)");
      return std::nullopt;
    }
    if (!per_shard.empty()) judge(*whole, per_shard, "shards");
    if (!findings_.problem && !sample_values.parts.empty()) {
      judge(sample_values.whole, sample_values.parts, "samples");
    }
    judge(gradient_mismatch);
    if (per_shard.empty() && sample_values.parts.empty() && samples() > 1) {
      fail(
          "its outputs or targets can't be cut into samples along the batch "
          "dimension, or the loss function does not take one sample");
    }
    return sample;
  }

  void compare_ranks(const std::vector<IValue>& per_rank) {
    std::optional<Losses> losses;
    std::optional<Mismatch> gradient_mismatch;
    try {
      losses = losses_of_ranks(per_rank);
      gradient_mismatch = compare_gradients_of_ranks(per_rank);
    } catch (const std::exception& error) {
      fail(
          fmt::format("the loss function can't take one sample of each "
                      "rank ({})",
                      text_of(error)));
    }
    // As after run(): a loss function may record the accuracy of the shard that
    // it saw last.
    gives_the_same_again();
    if (losses) judge(losses->whole, losses->parts, "ranks");
    judge(gradient_mismatch);
  }

  /// Calls the loss function for the first shard, and returns whether it gives
  /// the same loss again.
  bool gives_the_same_again() const {
    const ShardPass& first = shards_.passes.front();
    const Value again =
        call(batch_of(shards_.outputs.front(), shards_.first_target),
             shards_.samples.front());
    const double loss = first.loss.item<double>();
    return again.loss == loss || (std::isnan(again.loss) && std::isnan(loss));
  }

 private:
  struct Losses {
    Value whole;
    std::vector<Value> parts;
  };

  Value call(const IValue& batch, int64_t samples) const {
    const WeightedLoss loss = shards_.loss(output_of(batch), target_of(batch));
    return {.loss = loss.loss.item<double>(),
            .weight = loss.weight.defined() ? loss.weight.item<double>()
                                            : static_cast<double>(samples),
            .type = loss.loss.scalar_type()};
  }

  Value value_of(const ShardPass& pass) const {
    return {.loss = pass.loss.item<double>(),
            .weight = pass.weight,
            .type = pass.loss.scalar_type()};
  }

  /// Returns whether the losses of other ranks may be means over different
  /// units. A loss that states its weight tells the number of units, and a sum
  /// doesn't need it. Both are checked on this rank if there are several
  /// samples.
  bool needs_other_ranks() const {
    const auto targets = tensors_in(shards_.target);
    const bool has_shared =
        std::any_of(targets.begin(), targets.end(),
                    [](const TensorAtPath& at) { return at.is_shared; });
    const bool states_units = shards_.passes.front().states_weight ||
                              shards_.reduction == LossReduction::kSum;
    return !has_shared && (samples() < 2 || !states_units);
  }

  int64_t samples() const {
    return std::accumulate(shards_.samples.begin(), shards_.samples.end(),
                           int64_t{0});
  }

  IValue whole_output() const {
    if (shards_.outputs.size() == 1) return shards_.outputs.front();
    return gather(shards_.outputs, shards_.replica.device(), shards_.dim);
  }

  IValue whole_target() const {
    return map_tensors(shards_.target, [&](const Tensor& tensor) {
      return to_device(tensor.detach(), shards_.replica.device());
    });
  }

  /// Returns the part of `batch` with the samples [begin, begin + count).
  /// Returns nothing if the number of rows of a tensor in it is not a multiple
  /// of samples().
  std::optional<IValue> part(const IValue& batch, int64_t begin,
                             int64_t count) const {
    bool is_cut = true;
    const auto narrow = [&](const Tensor& tensor) {
      const int64_t dim = shards_.dim;
      if (tensor.dim() == 0 || dim >= tensor.dim() ||
          tensor.size(dim) % samples() != 0) {
        is_cut = false;
        return tensor;
      }
      const int64_t rows = tensor.size(dim) / samples();
      return tensor.narrow(dim, begin * rows, count * rows).detach();
    };
    IValue part = map_tensors(
        batch, narrow, [](const Tensor& tensor) { return tensor.detach(); });
    if (!is_cut) return std::nullopt;
    return part;
  }

  /// Returns the losses of groups of samples, usually of one sample each.
  /// Returns nothing if there is only one sample, or if the loss can't be
  /// computed for a group.
  std::vector<Value> values_of_samples(const IValue& batch) const {
    std::vector<Value> values;
    const int64_t size = (samples() + kMaxParts - 1) / kMaxParts;
    if (samples() < 2) return {};
    for (int64_t begin = 0; begin < samples(); begin += size) {
      const int64_t count = std::min(size, samples() - begin);
      const auto group = part(batch, begin, count);
      if (!group) return {};
      try {
        values.push_back(call(*group, count));
      } catch (const std::exception&) {
        return {};  // for example, a loss over pairs of samples
      }
    }
    return values;
  }

  /// Returns the losses of the batch, which is `whole` in the outputs' own
  /// type, and of its samples. Half and bfloat16 outputs are widened first,
  /// because losses rounded to three digits may hide differences.
  Losses losses_of_samples(const IValue& batch, const Value& whole) const {
    if (any_tensor(output_of(batch), is_reduced)) {
      try {
        const IValue wide = widened(batch);
        Losses losses{.whole = call(wide, samples()),
                      .parts = values_of_samples(wide)};
        if (!losses.parts.empty()) return losses;
      } catch (const std::exception&) {
        // The loss requires tensors of the outputs' type.
      }
    }
    return {.whole = whole, .parts = values_of_samples(batch)};
  }

  Losses losses_of_ranks(const std::vector<IValue>& samples) const {
    if (any_tensor(output_of(samples.front()), is_reduced)) {
      std::vector<IValue> wide;
      for (const IValue& sample : samples) wide.push_back(widened(sample));
      try {
        return losses_together_and_alone(wide);
      } catch (const std::exception&) {
        // As in losses_of_samples().
      }
    }
    return losses_together_and_alone(samples);
  }

  Losses losses_together_and_alone(const std::vector<IValue>& samples) const {
    Losses losses;
    for (const IValue& sample : samples) {
      losses.parts.push_back(call(sample, 1));
    }
    losses.whole =
        call(together(samples), static_cast<int64_t>(samples.size()));
    return losses;
  }

  IValue together(const std::vector<IValue>& samples) const {
    std::vector<IValue> outputs, targets;
    for (const IValue& sample : samples) {
      outputs.push_back(output_of(sample));
      targets.push_back(target_of(sample));
    }
    return batch_of(gather(outputs, shards_.replica.device(), shards_.dim),
                    gather(targets, shards_.replica.device(), shards_.dim));
  }

  /// Gradients of a loss at its outputs.
  struct OutputGradients {
    std::vector<Tensor> tensors;  // undefined: the loss does not depend on it
    double weight = 0;
    c10::ScalarType type = c10::ScalarType::Double;  // of the loss
  };
  struct Mismatch {
    double got = 0;
    double expected = 0;
  };

  OutputGradients gradients_of(const IValue& batch, int64_t samples) const {
    std::vector<Tensor> leaves;
    const IValue output = map_tensors(output_of(batch), [&](const Tensor& out) {
      if (!is_differentiable(out)) return out;
      leaves.push_back(out.detach().clone().set_requires_grad(true));
      return leaves.back();
    });
    const WeightedLoss loss = shards_.loss(output, target_of(batch));
    OutputGradients gradients{.tensors = std::vector<Tensor>(leaves.size()),
                              .weight = loss.weight.defined()
                                            ? loss.weight.item<double>()
                                            : static_cast<double>(samples),
                              .type = loss.loss.scalar_type()};
    if (loss.loss.requires_grad() && !leaves.empty()) {
      gradients.tensors =
          torch::autograd::grad({loss.loss}, leaves, {}, /*retain_graph=*/false,
                                /*create_graph=*/false, /*allow_unused=*/true);
    }
    return gradients;
  }

  /// Returns the largest difference between the gradient at the outputs of
  /// `whole` and the gradients at those of its `parts`, which have `samples`
  /// samples, if rounding does not explain it.
  std::optional<Mismatch> compare_gradients(
      const IValue& whole, const std::vector<IValue>& parts,
      const std::vector<int64_t>& samples) const {
    const OutputGradients expected = gradients_of(
        whole, std::accumulate(samples.begin(), samples.end(), int64_t{0}));
    std::vector<OutputGradients> part_gradients;
    double weight = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      part_gradients.push_back(gradients_of(parts[i], samples[i]));
      weight += part_gradients.back().weight;
    }
    const bool is_sum = shards_.reduction == LossReduction::kSum;
    if (!is_sum && weight == 0) return std::nullopt;
    const torch::NoGradGuard no_grad;
    std::optional<Mismatch> worst;
    for (size_t t = 0; t < expected.tensors.size(); ++t) {
      std::vector<Tensor> rows;
      for (const OutputGradients& part : part_gradients) {
        if (!part.tensors[t].defined()) continue;
        const double factor = is_sum ? 1 : part.weight / weight;
        rows.push_back(factor == 0 ? torch::zeros_like(part.tensors[t])
                                   : part.tensors[t] * factor);
      }
      if (rows.size() != parts.size() || !expected.tensors[t].defined()) {
        continue;
      }
      const Tensor got = torch::cat(rows, shards_.dim).to(torch::kDouble);
      const Tensor wanted = expected.tensors[t].to(torch::kDouble);
      const double scale = wanted.abs().max().item<double>();
      const Tensor difference = (got - wanted).abs().flatten();
      const int64_t at = difference.argmax().item<int64_t>();
      const double largest = difference[at].item<double>();
      // Roundings of a gradient's terms add up more than those of a loss.
      constexpr double kTerms = 10;
      const double tolerance =
          kTerms * std::max(tolerance_of(expected.type),
                            tolerance_of(expected.tensors[t].scalar_type()));
      if (!std::isfinite(largest) || largest <= tolerance * scale) continue;
      worst = {.got = got.flatten()[at].item<double>(),
               .expected = wanted.flatten()[at].item<double>()};
    }
    return worst;
  }

  /// Compares the gradients of some samples with those of their halves.
  std::optional<Mismatch> compare_gradients_of_samples(
      const IValue& batch) const {
    constexpr int64_t kMaxElements = int64_t{1} << 22;
    if (samples() < 2 || !any_tensor(output_of(batch), is_differentiable)) {
      return std::nullopt;
    }
    int64_t elements = 1;
    for (const TensorAtPath& out : tensors_in(output_of(batch))) {
      elements += out.tensor.numel();
    }
    const int64_t count =
        std::clamp(samples() * kMaxElements / elements, int64_t{2}, samples());
    const int64_t half = count / 2;
    const auto whole = part(batch, 0, count);
    const auto first = part(batch, 0, half);
    const auto second = part(batch, half, count - half);
    if (!whole || !first || !second) return std::nullopt;
    try {
      return compare_gradients(*whole, {*first, *second}, {half, count - half});
    } catch (const std::exception&) {
      return std::nullopt;  // for example, a loss over pairs of samples
    }
  }

  std::optional<Mismatch> compare_gradients_of_ranks(
      const std::vector<IValue>& samples) const {
    try {
      return compare_gradients(together(samples), samples,
                               std::vector<int64_t>(samples.size(), 1));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  /// Compares the loss of the whole with those of its parts. `of` says what
  /// kind of parts they are.
  void judge(const Value& whole, const std::vector<Value>& values,
             const char* of) {
    const Combined parts = combine(values, shards_.reduction);
    const bool is_sum = shards_.reduction == LossReduction::kSum;
    if (!is_sum && parts.weight == 0) return;
    // The loss of a part may be a mean over no units (NaN) even if the whole is
    // not.
    if (!std::isfinite(whole.loss) || std::isinf(parts.loss)) return;
    const double tolerance = tolerance_of(whole.type);
    // If the terms of a loss cancel out, the error of the loss is that of its
    // terms.
    double noise = 0;
    for (const IValue& output : shards_.outputs) {
      noise = std::max(noise, largest_in(output));
    }
    noise *= 8 * epsilon_of(whole.type);
    const auto is_near = [&](double a, double b, double scale) {
      return std::abs(a - b) <=
             tolerance * std::max({std::abs(a), std::abs(b), scale}) + noise;
    };
    const bool losses_agree = is_near(whole.loss, parts.loss, parts.largest);
    if (losses_agree && (is_sum || is_near(whole.weight, parts.weight, 0))) {
      findings_.loss.state = CheckState::kPassed;
      return;
    }
    const bool seems_summed =
        !is_sum && is_near(whole.loss, parts.sum, parts.largest);
    Problem problem{
        .code = ErrorCode::kBadLoss,
        .what = fmt::format(
            "the loss of a batch is not the {} of its {}' losses, so the "
            "gradient would be another one than that of the batch. Nothing was "
            "updated",
            is_sum ? "sum" : "mean", of),
        .expected = fmt::format("{:.9g} for all samples at once", whole.loss),
        .got = fmt::format("{:.9g} from {} parts", parts.loss, values.size())};
    if (!is_sum && losses_agree) {
      problem.what =
          "the weights that the loss function returns for parts of a batch do "
          "not add up to the weight of the batch. Nothing was updated";
      problem.expected = fmt::format("{:.9g}", whole.weight);
      problem.got = fmt::format("{:.9g}", parts.weight);
      problem.fix = "return the number of units that the loss is the mean of";
    } else if (seems_summed) {
      problem.fix =
          "it is a sum: set "
          "TrainStepOptions().loss_reduction(LossReduction::kSum), with a "
          "Trainer trainer.loss_reduction(LossReduction::kSum), or return the "
          "mean";
    } else if (is_sum) {
      problem.fix =
          "return a sum over the samples, or leave out "
          "LossReduction::kSum for a mean";
    } else {
      problem.fix =
          "if it is a mean over targets that count (ignore_index, class "
          "weights, a mask), return lockstep::cross_entropy(output, target) or "
          "{loss, weight} as a lockstep::WeightedLoss; if it compares samples "
          "with each other (contrastive), call forward() and compute the loss "
          "on the whole batch, which lockstep::all_gather_with_grad(world, "
          "output) brings together if there are several ranks";
    }
    findings_.problem = std::move(problem);
  }

  void judge(const std::optional<Mismatch>& gradient) {
    const bool has_right_value =
        !findings_.problem && findings_.loss.state == CheckState::kPassed;
    if (!has_right_value || !gradient) return;
    findings_.problem = Problem{
        .code = ErrorCode::kBadLoss,
        .what =
            "the loss of a batch has the right value, but its gradient at "
            "the outputs is not that of its parts. Nothing was updated",
        .expected =
            fmt::format("{:.9g} for all samples at once", gradient->expected),
        .got = fmt::format("{:.9g}", gradient->got),
        .fix =
            "let each sample's part of the loss depend on its own output; "
            "if the loss compares samples with each other (a maximum or a "
            "norm over the batch), call forward() and compute the loss on "
            "the whole batch"};
  }

  void fail(std::string reason) {
    findings_.loss = {.state = CheckState::kImpossible,
                      .reason = std::move(reason)};
  }

  const ComputedShards& shards_;
  Findings& findings_;
};

/// Calls `check` for a few samples of `shards`. The module returns its loss.
void check_with_module(const ComputedShards& shards, Findings& findings,
                       const std::function<void(LossCheck&)>& check) {
  try {
    const ModuleLoss module(shards);
    const ComputedShards few = module.shards();
    LossCheck module_check(few, findings);
    check(module_check);
  } catch (const std::exception& error) {
    findings.loss = {
        .state = CheckState::kImpossible,
        .reason = fmt::format(
            "forward() returns a scalar, the loss itself perhaps, which can't "
            "be computed for a few samples in evaluation mode ({})",
            text_of(error))};
  }
  // As in LossCheck::run(): values that the loss function records are then
  // those of the first shard again.
  LossCheck(shards, findings).gives_the_same_again();
}

/// Returns the types and shapes of the tensors in a sample, as text.
std::string layout_of(const IValue& sample) {
  std::string layout;
  for (const auto& [tensor, path, is_shared] : tensors_in(sample)) {
    layout += c10::str(path, tensor.scalar_type(), tensor.sizes(), ";");
  }
  return layout;
}

}  // namespace

std::optional<IValue> check_loss_is_mean(const ComputedShards& shards,
                                         Findings& findings) {
  const torch::AutoGradMode with_grad(true);
  if (!ModuleLoss::is_in(shards)) return LossCheck(shards, findings).run();
  std::optional<IValue> sample;
  check_with_module(shards, findings,
                    [&](LossCheck& check) { sample = check.run(); });
  return sample;
}

std::vector<IValue> gather_samples(const ProcessGroup& world,
                                   const std::optional<IValue>& own,
                                   Findings& findings) {
  const auto layouts = world.all_gather_text(own ? layout_of(*own) : "");
  const auto all_are = [&](const auto& predicate) {
    return std::all_of(layouts.begin(), layouts.end(), predicate);
  };
  if (!all_are([](const auto& layout) { return !layout.empty(); })) return {};
  if (!all_are([&](const auto& layout) { return layout == layouts.front(); })) {
    findings.loss = {.state = CheckState::kImpossible,
                     .reason =
                         "the outputs and targets of two ranks have "
                         "different shapes, so that their losses can't "
                         "be compared"};
    return {};
  }
  std::vector<std::vector<Tensor>> tensors;  // [tensor][rank]
  for (const TensorAtPath& at : tensors_in(*own)) {
    tensors.push_back(world.all_gather(at.tensor.contiguous()).result());
  }
  std::vector<IValue> samples;
  for (size_t rank = 0; rank < layouts.size(); ++rank) {
    size_t at = 0;
    samples.push_back(
        map_tensors(*own, [&](const Tensor&) { return tensors[at++][rank]; }));
  }
  return samples;
}

void check_loss_over_ranks(const ComputedShards& shards,
                           const std::vector<IValue>& samples,
                           Findings& findings) {
  const torch::AutoGradMode with_grad(true);
  if (!ModuleLoss::is_in(shards)) {
    return LossCheck(shards, findings).compare_ranks(samples);
  }
  check_with_module(shards, findings,
                    [&](LossCheck& check) { check.compare_ranks(samples); });
}

}  // namespace lockstep
