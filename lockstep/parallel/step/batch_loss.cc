#include "lockstep/parallel/step/batch_loss.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

using torch::Tensor;

namespace {

[[noreturn]] void fail_loss(const char* what, const char* expected,
                            std::string got, const char* fix) {
  throw ParallelError("parallel", {.code = ErrorCode::kBadLoss,
                                   .what = what,
                                   .expected = expected,
                                   .got = std::move(got),
                                   .fix = fix});
}

void check_loss(const Tensor& loss) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad()) return;
  fail_loss("the loss function returned something else than a loss",
            "a scalar tensor that depends on the parameters",
            !loss.defined()     ? "an undefined tensor"
            : loss.numel() != 1 ? "shape " + c10::str(loss.sizes())
                                : "a tensor without a graph",
            "reduce it (mean) and don't detach it");
}

}  // namespace

double checked_weight(const WeightedLoss& loss, int64_t samples) {
  check_loss(loss.loss);
  if (!loss.weight.defined()) {
    return static_cast<double>(std::max<int64_t>(samples, 1));
  }
  constexpr const char* kFix =
      "return {loss, units}, with the number of units that the loss is the "
      "mean of";
  if (loss.weight.numel() != 1) {
    fail_loss("the loss function returned a weight that is no number",
              "a scalar", "shape " + c10::str(loss.weight.sizes()), kFix);
  }
  const double weight = loss.weight.item<double>();
  if (!std::isfinite(weight) || weight < 0) {
    fail_loss("the loss function returned a weight that can't be used",
              "0 or more", fmt::format("{}", weight), kFix);
  }
  return weight;
}

double loss_seed(double weight, int64_t batch, LossReduction reduction) {
  if (weight == 0) return 0;
  if (reduction == LossReduction::kSum) return 1;
  return weight / static_cast<double>(std::max<int64_t>(batch, 1));
}

BatchLoss batch_loss(const StepTotals& totals, const TrainStepOptions& options,
                     bool is_partial) {
  BatchLoss batch;
  for (const ShardLossTotal& shard : totals.shards) {
    batch.loss += shard.loss;
    batch.weight += shard.weight;
  }
  if (options.loss_reduction() == LossReduction::kSum) return batch;
  const auto samples =
      static_cast<double>(std::max<int64_t>(totals.samples, 1));
  double total = options.total_weight();
  if (total == 0) total = is_partial ? samples : batch.weight;
  batch.is_empty = total == 0;
  if (batch.is_empty) return batch;
  batch.factor = samples / total;
  if (batch.factor != 1) batch.loss *= batch.factor;
  return batch;
}

void check_reduction(const TrainStepOptions& options) {
  const double total = options.total_weight();
  const bool is_weight = std::isfinite(total) && total >= 0;
  if (is_weight &&
      (total == 0 || options.loss_reduction() == LossReduction::kMean)) {
    return;
  }
  throw InvalidArgument(
      "parallel", {.code = ErrorCode::kBadOption,
                   .what = "there is no such total_weight",
                   .expected = "0 or more, and 0 with LossReduction::kSum",
                   .got = fmt::format("{}", total),
                   .fix = "pass the number of units in the whole batch"});
}

void check_has_total_weight(const TrainStepOptions& options) {
  // A sum is not divided by a weight.
  if (options.loss_reduction() == LossReduction::kSum) return;
  if (options.total_weight() > 0) return;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadOption,
       .what = "the loss function returned a weight in a step whose gradients "
               "are added to those of other steps of this rank (no_sync()), "
               "so the weight of the whole batch is not known",
       .fix = "pass the weight of all steps and ranks to each of these steps: "
              "TrainStepOptions().total_weight(weight)"});
}

void check_batch_weight(const BatchLoss& batch,
                        const TrainStepOptions& options) {
  if (batch.is_empty && options.empty_batch() == EmptyBatch::kError) {
    throw ParallelError(
        "parallel",
        {.code = ErrorCode::kEmptyBatch,
         .what = "the losses of the batch have the weight 0 in total, so there "
                 "is nothing to train on. Nothing was updated",
         .expected = "a batch with at least one target that counts",
         .fix = "leave out such a batch, or set empty_batch(EmptyBatch::kSkip) "
                "in TrainStepOptions or on the Trainer"});
  }
  const double total = options.total_weight();
  if (total > 0 && batch.weight > total * (1 + 1e-9)) {
    throw ParallelError(
        "parallel",
        {.code = ErrorCode::kBadOption,
         .what = "the losses of one call weigh more than total_weight, which "
                 "is the weight of all calls and ranks",
         .expected = fmt::format("{} at most", total),
         .got = fmt::format("{}", batch.weight),
         .fix = "pass the number of units in the whole batch, on all ranks"});
  }
}

}  // namespace lockstep
