#include "lockstep/parallel/replicas/loss_check.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/autocast.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep {

using c10::IValue;
using torch::Tensor;

namespace {

/// A value of the loss function.
struct Value {
  double loss = 0;
  double weight = 0;
  c10::ScalarType type = c10::ScalarType::Double;
};

/// What the shards' losses make up, weighted by their weights.
struct Combined {
  double loss = 0;
  double weight = 0;
  double largest = 0;  // of the losses' magnitudes
  double sum = 0;      // of the losses, not weighted
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

/// How far two roundings of one loss may be apart, relative to it.
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

/// The largest magnitude of an element in `value`.
double largest_in(const IValue& value) {
  double largest = 0;
  for_each_tensor(value, [&](const Tensor& tensor, const std::string&) {
    if (tensor.numel() == 0 || !tensor.is_floating_point()) return;
    largest = std::max(largest, tensor.abs().max().item<double>());
  });
  return largest;
}

bool has_scalar(const IValue& value) {
  bool has = false;
  for_each_tensor(value, [&](const Tensor& tensor, const std::string&) {
    has = has || tensor.dim() == 0;
  });
  return has;
}

/// The part of `value` with the samples [begin, begin + count) of `samples`;
/// nothing if a tensor in it has not as many rows, or as many for each sample.
std::optional<IValue> narrowed(const IValue& value, int64_t dim, int64_t begin,
                               int64_t count, int64_t samples) {
  bool is_cut = true;
  const auto narrow = [&](const Tensor& tensor) {
    if (tensor.dim() == 0 || dim >= tensor.dim() ||
        tensor.size(dim) % samples != 0) {
      is_cut = false;
      return tensor;
    }
    const int64_t rows = tensor.size(dim) / samples;
    return tensor.narrow(dim, begin * rows, count * rows).detach();
  };
  IValue part = map_tensors(
      value, narrow, [](const Tensor& tensor) { return tensor.detach(); });
  if (!is_cut) return std::nullopt;
  return part;
}

/// Compares the loss of all samples with that of parts of them.
class LossCheck {
 public:
  LossCheck(const ComputedShards& shards, FirstStep::Findings& findings)
      : shards_(shards), findings_(findings) {}

  void run() {
    const auto count = shards_.passes.size();
    if (count == 0) return;
    if (has_scalar(shards_.passes.front().output)) {
      return fail(
          "forward() returns a scalar, the loss itself perhaps, which "
          "is that of one shard");
    }
    std::optional<Value> whole;
    std::vector<Value> parts;
    try {
      if (count > 1) {
        for (const ShardPass& pass : shards_.passes) {
          parts.push_back(value_of(pass));
        }
        whole = value_of_all();
      } else if (cut_in_halves(parts)) {
        whole = value_of(shards_.passes.front());
      }
    } catch (const std::exception& error) {
      fail(
          fmt::format("the loss function can't take the outputs of several "
                      "shards, or a part of one ({})",
                      text_of(error)));
    }
    // In any case: what the function notes of the first shard is right then.
    const bool is_repeatable = gives_the_same_again();
    if (!whole) return;
    if (!is_repeatable) {
      return fail(
          "the loss function gives another loss each time that it is called "
          "with the same output and target (it draws random numbers, or counts "
          "its calls)");
    }
    judge(*whole, combine(parts, shards_.reduction));
  }

 private:
  Value call(const IValue& output, const IValue& target,
             int64_t samples) const {
    const WeightedLoss loss = shards_.loss(output, target);
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

  Value value_of_all() const {
    std::vector<IValue> outputs;
    for (const ShardPass& pass : shards_.passes) outputs.push_back(pass.output);
    return call(gather(outputs, shards_.device, shards_.dim), whole_target(),
                std::accumulate(shards_.samples.begin(), shards_.samples.end(),
                                int64_t{0}));
  }

  IValue whole_target() const {
    return map_tensors(shards_.target, [&](const Tensor& tensor) {
      return to_device(tensor.detach(), shards_.device);
    });
  }

  bool cut_in_halves(std::vector<Value>& values) {
    const IValue& output = shards_.passes.front().output;
    const int64_t samples = shards_.samples.front();
    if (samples < 2) {
      fail("a rank has one sample");
      return false;
    }
    for (const int64_t begin : {int64_t{0}, samples / 2}) {
      const int64_t count = begin == 0 ? samples / 2 : samples - samples / 2;
      const auto half_output =
          narrowed(output, shards_.dim, begin, count, samples);
      const auto half_target =
          narrowed(shards_.target, shards_.dim, begin, count, samples);
      if (!half_output || !half_target) {
        fail(
            "an output or a target can't be cut into halves along the batch "
            "dimension");
        return false;
      }
      values.push_back(call(*half_output, *half_target, count));
    }
    return true;
  }

  bool gives_the_same_again() const {
    const ShardPass& first = shards_.passes.front();
    const Value again =
        call(first.output, shards_.first_target, shards_.samples.front());
    const double loss = first.loss.item<double>();
    return again.loss == loss || (std::isnan(again.loss) && std::isnan(loss));
  }

  void judge(const Value& whole, const Combined& parts) {
    const bool is_sum = shards_.reduction == LossReduction::kSum;
    if (!is_sum && parts.weight == 0) return;
    if (!std::isfinite(whole.loss) || !std::isfinite(parts.loss)) return;
    const double tolerance = tolerance_of(whole.type);
    // A loss whose terms cancel out is as inexact as the terms.
    double noise = 0;
    for (const ShardPass& pass : shards_.passes) {
      noise = std::max(noise, largest_in(pass.output));
    }
    noise *= 8 * epsilon_of(whole.type);
    const auto is_near = [&](double a, double b, double scale) {
      return std::abs(a - b) <=
             tolerance * std::max({std::abs(a), std::abs(b), scale}) + noise;
    };
    const bool losses_agree = is_near(whole.loss, parts.loss, parts.largest);
    if (losses_agree && (is_sum || is_near(whole.weight, parts.weight, 0))) {
      findings_.loss.check = StepCheck::kPassed;
      return;
    }
    const bool looks_summed =
        !is_sum && is_near(whole.loss, parts.sum, parts.largest);
    Problem problem{
        .code = ErrorCode::kLossNotMean,
        .what = fmt::format(
            "the loss of a batch is not the {} of its {}' losses, so the "
            "gradient would be another one than that of the batch. Nothing was "
            "updated",
            is_sum ? "sum" : "mean",
            shards_.passes.size() > 1 ? "shards" : "halves"),
        .expected = fmt::format("{:.9g} for all samples at once", whole.loss),
        .got = fmt::format("{:.9g} from {} parts", parts.loss,
                           std::max<size_t>(shards_.passes.size(), 2))};
    if (!is_sum && losses_agree) {
      problem.what =
          "the weights that the loss function returns for parts of a batch do "
          "not add up to the weight of the batch. Nothing was updated";
      problem.expected = fmt::format("{:.9g}", whole.weight);
      problem.got = fmt::format("{:.9g}", parts.weight);
      problem.fix = "return the number of units that the loss is the mean of";
    } else if (looks_summed) {
      problem.fix =
          "it is a sum: set "
          "TrainStepOptions().loss_reduction(LossReduction::kSum), or return "
          "the mean";
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

  void fail(std::string reason) {
    findings_.loss = {.check = StepCheck::kImpossible,
                      .reason = std::move(reason)};
  }

  const ComputedShards& shards_;
  FirstStep::Findings& findings_;
};

}  // namespace

void check_loss_is_mean(const ComputedShards& shards,
                        FirstStep::Findings& findings) {
  const torch::AutoGradMode with_grad(true);
  LossCheck(shards, findings).run();
}

}  // namespace lockstep
