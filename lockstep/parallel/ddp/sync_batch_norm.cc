#include "lockstep/parallel/ddp/sync_batch_norm.h"

#include <ostream>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/saved_world.h"

namespace lockstep {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// Moments of each channel. They are double because the moments of the ranks
/// are combined by differences.
struct Moments {
  Tensor mean;         ///< [C]
  Tensor square_sums;  ///< [C], sums of squared differences from the mean
  double count = 0;  ///< number of values of a channel: samples times positions
};

std::vector<int64_t> all_but_channels(const Tensor& tensor) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < tensor.dim(); ++d) dims.push_back(d);
  return dims;
}

/// Returns `tensor` as float, or as double if it is double.
Tensor widened(const Tensor& tensor) {
  return tensor.scalar_type() == torch::kDouble ? tensor
                                                : tensor.to(torch::kFloat);
}

/// Reshapes [C] to [1, C, 1, ...], in the type that `like` is computed in.
Tensor spread(const Tensor& per_channel, const Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = per_channel.numel();
  return per_channel
      .to(like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat)
      .view(shape);
}

Moments local_moments(const Tensor& input) {
  const int64_t channels = input.size(1);
  const auto like = input.options().dtype(torch::kDouble);
  Moments local{torch::zeros({channels}, like), torch::zeros({channels}, like),
                0};
  if (input.numel() == 0) return local;
  local.count = static_cast<double>(input.numel() / channels);
  const auto [variance, mean] =
      torch::var_mean(widened(input), all_but_channels(input),
                      /*unbiased=*/false);
  local.mean = mean.to(torch::kDouble);
  local.square_sums = variance.to(torch::kDouble) * local.count;
  return local;
}

/// Combines the moments of the ranks in rank order, as in Chan, Golub, LeVeque,
/// "Updating formulae and a pairwise algorithm for computing sample variances"
/// (1979).
Moments moments_of_all(const ProcessGroup& world, const Tensor& input) {
  const Moments local = local_moments(input);
  const auto all =
      world
          .all_gather(
              torch::cat({local.mean, local.square_sums,
                          torch::full({1}, local.count, local.mean.options())}))
          .result();
  const int64_t channels = input.size(1);
  Moments total{torch::zeros_like(local.mean), torch::zeros_like(local.mean),
                0};
  for (const Tensor& moments_of_rank : all) {
    const double count = moments_of_rank[2 * channels].item<double>();
    if (count == 0) continue;
    const Tensor difference =
        moments_of_rank.narrow(0, 0, channels) - total.mean;
    const double sum = total.count + count;
    total.mean += difference * (count / sum);
    total.square_sums += moments_of_rank.narrow(0, channels, channels) +
                         difference.square() * (total.count * count / sum);
    total.count = sum;
  }
  return total;
}

/// Computes (x - mean) / sqrt(var + eps), with the moments over all ranks' x.
struct SyncedNorm : torch::autograd::Function<SyncedNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& input,
                        const Tensor& mean, const Tensor& inverse_deviation,
                        double count, const ProcessGroup& world) {
    const Tensor output = (widened(input) - spread(mean, input)) *
                          spread(inverse_deviation, input);
    context->save_for_backward({output, inverse_deviation});
    context->saved_data["count"] = count;
    ddp::save_world(*context, world);
    return output;
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    ddp::check_no_double_backward(
        "sync_batch_norm",
        "use BatchNorm, or another norm, in a gradient penalty");
    const Tensor& gradient = gradients[0];
    const auto saved = context->get_saved_variables();
    const Tensor &output = saved[0], &inverse_deviation = saved[1];
    const auto dims = all_but_channels(output);
    Tensor means =
        torch::stack({gradient.sum(dims, false, torch::kDouble),
                      (gradient * output).sum(dims, false, torch::kDouble)});
    ddp::saved_world(*context).all_reduce(means);
    means /= context->saved_data["count"].toDouble();
    return {(gradient - spread(means[0], output) -
             output * spread(means[1], output)) *
                spread(inverse_deviation, output),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(
    const torch::nn::BatchNormOptions& options_, const ProcessGroup& world)
    : options(options_), world_(world) {
  reset();
}

void SyncBatchNormImpl::reset() {
  const std::vector<int64_t> channels{options.num_features()};
  if (options.affine()) {
    weight = register_parameter("weight", torch::ones(channels));
    bias = register_parameter("bias", torch::zeros(channels));
  }
  if (options.track_running_stats()) {
    running_mean = register_buffer("running_mean", torch::zeros(channels));
    running_var = register_buffer("running_var", torch::ones(channels));
    num_batches_tracked =
        register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("lockstep::SyncBatchNorm({}, eps={}, ranks={})",
                        options.num_features(), options.eps(), world_.size());
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw InvalidArgument(
        "sync_batch_norm",
        {.code = ErrorCode::kBadTensor,
         .what = "the input does not fit",
         .expected = fmt::format("[N, {}, ...]", options.num_features()),
         .got = "shape " + c10::str(input.sizes())});
  }
  const bool is_training = this->is_training();
  const double momentum = options.momentum().value_or(0);
  if (!is_training && running_mean.defined()) {
    return torch::batch_norm(input, weight, bias, running_mean, running_var,
                             /*training=*/false, momentum, options.eps(),
                             /*cudnn_enabled=*/true);
  }
  Moments moments;
  Tensor inverse_deviation;
  {
    const torch::NoGradGuard no_grad;
    // In evaluation, uses the statistics of this rank only, because other ranks
    // may not take part.
    moments = moments_of_all(is_training ? world_ : ProcessGroup(), input);
    if (moments.count < 2 && is_training) {
      throw ParallelError(
          "sync_batch_norm",
          {.code = ErrorCode::kBadTensor,
           .what = "a variance of one value",
           .expected = "more than one value for each channel, over all ranks",
           .got = "shape " + c10::str(input.sizes())});
    }
    const Tensor variance = moments.square_sums / moments.count;
    inverse_deviation = (variance + options.eps()).rsqrt();
    if (is_training && running_mean.defined()) {
      num_batches_tracked += 1;
      const double rate = options.momentum()
                              ? momentum
                              : 1 / num_batches_tracked.item<double>();
      running_mean.mul_(1 - rate).add_(moments.mean, rate);
      running_var.mul_(1 - rate).add_(moments.square_sums / (moments.count - 1),
                                      rate);
    }
  }
  Tensor output =
      SyncedNorm::apply(input, moments.mean, inverse_deviation, moments.count,
                        is_training ? world_ : ProcessGroup());
  if (weight.defined()) {
    output = output * spread(weight, output) + spread(bias, output);
  }
  return output.to(input.scalar_type());
}

}  // namespace lockstep
