#include "lockstep/parallel/exchange/power_sgd.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Makes the columns of `matrix` [rows, rank] orthonormal. QR does not work in
/// half precision and pays off above rank 2.
void orthogonalize(Tensor& matrix, double epsilon) {
  const int64_t columns = matrix.size(1);
  const auto type = matrix.scalar_type();
  if (columns > 2 && type != torch::kHalf && type != torch::kBFloat16) {
    matrix.copy_(std::get<0>(torch::linalg_qr(matrix)));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {
    Tensor column = matrix.narrow(1, i, 1);
    column.div_(column.norm(2, {0}, /*keepdim=*/true) + epsilon);
    if (i + 1 == columns) break;
    Tensor rest = matrix.narrow(1, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum(0, /*keepdim=*/true) * column);
  }
}

/// A whole number below `limit`, at most 2^30, as numpy's RandomState.randint
/// draws it.
uint32_t draw(std::mt19937& random, uint32_t limit) {
  constexpr uint32_t kMask = (1U << 30) - 1;
  for (;;) {
    const auto value = static_cast<uint32_t>(random()) & kMask;
    if (value < limit) return value;
  }
}

void all_reduce_together(const World& world, std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors) flat.push_back(tensor.flatten());
  Tensor together = torch::cat(flat);
  world.all_reduce(together);
  int64_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.copy_(together.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

/// M = P Q^T, of one gradient.
struct Factors {
  Tensor matrix, p, q;
};

}  // namespace

struct PowerSGD::State {
  struct BucketState {
    Tensor p, q;   // all factors of the bucket, one after another
    Tensor error;  // what compression lost in the step before
  };

  PowerSGDOptions options;
  std::mt19937 random;
  int64_t steps = 0;
  std::map<int64_t, BucketState> buckets;

  bool is_worth_it(const Tensor& matrix) const {
    const int64_t rows = matrix.size(0);
    const int64_t columns = matrix.size(1);
    return static_cast<double>((rows + columns) * rank_of(matrix)) *
               options.min_compression_rate() <
           static_cast<double>(rows * columns);
  }
  int64_t rank_of(const Tensor& matrix) const {
    return std::min(
        {matrix.size(0), matrix.size(1), options.matrix_approximation_rank()});
  }
  std::vector<Factors> factors_of(const std::vector<Tensor>& matrices,
                                  BucketState& bucket_state);
};

std::vector<Factors> PowerSGD::State::factors_of(
    const std::vector<Tensor>& matrices, BucketState& bucket_state) {
  int64_t p_size = 0, q_size = 0;
  for (const Tensor& matrix : matrices) {
    p_size += matrix.size(0) * rank_of(matrix);
    q_size += matrix.size(1) * rank_of(matrix);
  }
  const bool is_warm = options.warm_start() && bucket_state.p.defined() &&
                       bucket_state.p.numel() == p_size &&
                       bucket_state.q.numel() == q_size;
  std::optional<at::Generator> generator;
  if (!is_warm) {
    const auto like =
        matrices.empty() ? torch::TensorOptions() : matrices[0].options();
    bucket_state.p = torch::empty({p_size}, like);
    bucket_state.q = torch::empty({q_size}, like);
    generator =
        at::make_generator<at::CPUGeneratorImpl>(draw(random, 1'000'000'000));
  }
  std::vector<Factors> factors;
  int64_t p_at = 0, q_at = 0;
  for (const Tensor& matrix : matrices) {
    const int64_t rank = rank_of(matrix);
    const int64_t p_count = matrix.size(0) * rank;
    const int64_t q_count = matrix.size(1) * rank;
    Factors factor{matrix,
                   bucket_state.p.narrow(0, p_at, p_count).view({-1, rank}),
                   bucket_state.q.narrow(0, q_at, q_count).view({-1, rank})};
    p_at += p_count;
    q_at += q_count;
    if (generator) {
      // With a batch dimension of factor, as torch draws them.
      factor.q.copy_(torch::randn({1, matrix.size(1), rank}, generator,
                                  matrix.options().device(torch::kCPU))[0]);
    }
    orthogonalize(factor.q, options.orthogonalization_epsilon());
    factors.push_back(std::move(factor));
  }
  return factors;
}

PowerSGD::PowerSGD(const PowerSGDOptions& options)
    : state_(std::make_shared<State>()) {
  const auto require = [](bool holds, const char* name, const char* expected,
                          double got) {
    if (holds) return;
    throw InvalidArgument(
        "ddp", {.code = ErrorCode::kBadOption,
                .what = fmt::format("PowerSGD can't have this {}", name),
                .expected = expected,
                .got = fmt::format("{}", got)});
  };
  require(options.matrix_approximation_rank() >= 1, "matrix_approximation_rank",
          "1 or more",
          static_cast<double>(options.matrix_approximation_rank()));
  require(options.min_compression_rate() > 0, "min_compression_rate",
          "more than 0", options.min_compression_rate());
  require(options.orthogonalization_epsilon() >= 0, "orthogonalization_epsilon",
          "0 or more", options.orthogonalization_epsilon());
  // Buckets are cut anew after the first step.
  const bool keeps = options.use_error_feedback() || options.warm_start();
  require(options.start_powerSGD_iter() >= (keeps ? 2 : 0),
          "start_powerSGD_iter",
          keeps ? "2 or more with error feedback or warm start" : "0 or more",
          static_cast<double>(options.start_powerSGD_iter()));
  state_->options = options;
  state_->random.seed(options.random_seed());
}

void PowerSGD::operator()(const World& world, GradBucket& bucket) {
  State& state = *state_;
  const bool is_plain = state.steps < state.options.start_powerSGD_iter();
  if (bucket.is_last) ++state.steps;
  Tensor& buffer = bucket.buffer;
  if (bucket.weight != 1) buffer.mul_(bucket.weight);
  if (is_plain) {
    world.all_reduce(buffer);
    return;
  }

  State::BucketState& bucket_state = state.buckets[bucket.index];
  Tensor before;
  if (state.options.use_error_feedback()) {
    if (bucket_state.error.defined() &&
        bucket_state.error.numel() == buffer.numel()) {
      buffer.add_(bucket_state.error);
    }
    before = buffer.clone();
  }
  std::vector<Tensor> compressed, matrices, plain;
  for (const Tensor& gradient : bucket.gradients) {
    const Tensor matrix =
        gradient.reshape({gradient.dim() == 0 ? 1 : gradient.size(0),
                          gradient.numel() == 0 ? 0 : -1});
    if (state.is_worth_it(matrix)) {
      // Beside those of its shape: this is the order in which torch draws.
      const auto alike = std::find_if(
          matrices.rbegin(), matrices.rend(),
          [&](const Tensor& other) { return other.sizes() == matrix.sizes(); });
      const auto at = alike == matrices.rend() ? matrices.end() : alike.base();
      compressed.insert(compressed.begin() + (at - matrices.begin()), gradient);
      matrices.insert(at, matrix);
    } else {
      plain.push_back(gradient);
    }
  }
  std::vector<Factors> factors = state.factors_of(matrices, bucket_state);
  for (Factors& factor : factors)
    torch::mm_out(factor.p, factor.matrix, factor.q);
  all_reduce_together(world, plain);
  if (!factors.empty()) {
    world.all_reduce(bucket_state.p);
    for (Factors& factor : factors) {
      orthogonalize(factor.p, state.options.orthogonalization_epsilon());
      torch::mm_out(factor.q, factor.matrix.t(), factor.p);
    }
    world.all_reduce(bucket_state.q);
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    compressed[i].copy_(
        factors[i].p.mm(factors[i].q.t()).view(compressed[i].sizes()));
  }
  if (before.defined()) {
    // The sum's share of this rank: torch's error, times the weight.
    bucket_state.error = before.sub_(buffer, 1.0 / world.size());
  }
}

}  // namespace lockstep
