#include "lockstep/parallel/exchange/power_sgd.h"

#include <algorithm>
#include <random>
#include <set>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Draws an integer below `limit`, at most 2^30, as numpy's RandomState.randint
/// does.
uint32_t draw(std::mt19937& random, uint32_t limit) {
  constexpr uint32_t kMask = (1U << 30) - 1;
  for (;;) {
    const auto value = static_cast<uint32_t>(random()) & kMask;
    if (value < limit) return value;
  }
}

void all_reduce_together(const ProcessGroup& world,
                         std::vector<Tensor>& tensors) {
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

/// Factors of one gradient, M = P Q^T. Q is kept for the next step.
struct Factors {
  Tensor gradient, matrix, p;
  Tensor* q;
};

Tensor matrix_of(const Tensor& gradient) {
  return gradient.reshape({gradient.dim() == 0 ? 1 : gradient.size(0),
                           gradient.numel() == 0 ? 0 : -1});
}

}  // namespace

struct PowerSGD::State {
  struct ParameterState {
    Tensor parameter;  // kept, so that no other one gets its address
    Tensor factor;     // Q, [columns, rank]; undefined if not compressed
    Tensor error;      // error of the compression in the previous step
  };

  PowerSGDOptions options;
  std::mt19937 random;
  int64_t steps = 0;
  std::unordered_map<const c10::TensorImpl*, ParameterState> parameters;
  std::vector<const c10::TensorImpl*> prepared;
  std::set<int64_t> buckets;  // buckets that were compressed

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
  at::Generator next_generator() {
    return at::make_generator<at::CPUGeneratorImpl>(
        draw(random, 1'000'000'000));
  }
  ParameterState& of(const Tensor& parameter);
  Tensor draw_factor(const Tensor& matrix,
                     const at::Generator& generator) const;
  /// Draws the factors of a bucket's gradients unless they exist.
  void draw_factors(int64_t bucket, const std::vector<Factors>& factors);
};

PowerSGD::State::ParameterState& PowerSGD::State::of(const Tensor& parameter) {
  ParameterState& found = parameters[parameter.unsafeGetTensorImpl()];
  if (!found.parameter.defined()) found.parameter = parameter;
  if (options.use_error_feedback() && !found.error.defined()) {
    found.error = torch::zeros_like(parameter.detach());
  }
  return found;
}

Tensor PowerSGD::State::draw_factor(const Tensor& matrix,
                                    const at::Generator& generator) const {
  // Draws with a batch dimension of 1, as PyTorch does.
  return torch::randn({1, matrix.size(1), rank_of(matrix)}, generator,
                      matrix.options().device(torch::kCPU))[0]
      .to(matrix.device());
}

void PowerSGD::State::draw_factors(int64_t bucket,
                                   const std::vector<Factors>& factors) {
  const bool is_first = buckets.insert(bucket).second;
  const bool is_warm =
      options.warm_start() && (!is_first || !prepared.empty()) &&
      std::all_of(factors.begin(), factors.end(),
                  [](const Factors& factor) { return factor.q->defined(); });
  if (is_warm) return;
  const at::Generator generator = next_generator();
  for (const Factors& factor : factors) {
    *factor.q = draw_factor(factor.matrix, generator);
  }
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
  // The buckets are rebuilt after the first step.
  const bool keeps = options.use_error_feedback() || options.warm_start();
  require(options.start_powerSGD_iter() >= (keeps ? 2 : 0),
          "start_powerSGD_iter",
          keeps ? "2 or more with error feedback or warm start" : "0 or more",
          static_cast<double>(options.start_powerSGD_iter()));
  state_->options = options;
  state_->random.seed(options.random_seed());
}

void PowerSGD::operator()(const ProcessGroup& world, GradBucket& bucket) {
  State& state = *state_;
  const bool is_plain = state.steps < state.options.start_powerSGD_iter();
  if (bucket.is_last) ++state.steps;
  Tensor& buffer = bucket.buffer;
  if (bucket.weight != 1) buffer.mul_(bucket.weight);
  if (is_plain) {
    world.all_reduce(buffer);
    return;
  }

  if (state.options.use_error_feedback()) {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      Tensor& error = state.of(bucket.parameters[i]).error;
      bucket.gradients[i].add_(error);
      error.copy_(bucket.gradients[i]);
    }
  }
  std::vector<Factors> factors;
  std::vector<Tensor> plain;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const Tensor& gradient = bucket.gradients[i];
    const Tensor matrix = matrix_of(gradient);
    if (!state.is_worth_it(matrix)) {
      plain.push_back(gradient);
      continue;
    }
    // Insert next to factors of the same shape, because PyTorch draws in this
    // order.
    const auto alike = std::find_if(
        factors.rbegin(), factors.rend(), [&](const Factors& other) {
          return other.matrix.sizes() == matrix.sizes();
        });
    factors.insert(alike == factors.rend() ? factors.end() : alike.base(),
                   {.gradient = gradient,
                    .matrix = matrix,
                    .p = {},
                    .q = &state.of(bucket.parameters[i]).factor});
  }
  state.draw_factors(bucket.index, factors);
  const double epsilon = state.options.orthogonalization_epsilon();
  std::vector<Tensor> p, q;
  for (Factors& factor : factors) {
    orthogonalize(*factor.q, epsilon);
    factor.p = torch::mm(factor.matrix, *factor.q);
    p.push_back(factor.p);
    q.push_back(*factor.q);
  }
  all_reduce_together(world, plain);
  all_reduce_together(world, p);
  for (Factors& factor : factors) {
    orthogonalize(factor.p, epsilon);
    torch::mm_out(*factor.q, factor.matrix.t(), factor.p);
  }
  all_reduce_together(world, q);
  for (const Factors& factor : factors) {
    factor.gradient.copy_(
        factor.p.mm(factor.q->t()).view(factor.gradient.sizes()));
  }
  if (state.options.use_error_feedback()) {
    // Subtracts this rank's share of the sum. The result is PyTorch's error
    // times the weight.
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      state.of(bucket.parameters[i])
          .error.sub_(bucket.gradients[i], 1.0 / world.size());
    }
  }
}

void PowerSGD::prepare(const std::vector<Tensor>& parameters) {
  State& state = *state_;
  const at::Generator generator = state.next_generator();
  for (const Tensor& parameter : parameters) {
    state.prepared.push_back(parameter.unsafeGetTensorImpl());
    Tensor& factor = state.of(parameter).factor;
    const Tensor matrix = matrix_of(parameter.detach());
    if (state.is_worth_it(matrix)) {
      factor = state.draw_factor(matrix, generator);
    }
  }
}

std::map<std::string, Tensor> PowerSGD::state_dict() const {
  std::map<std::string, Tensor> entries;
  for (size_t i = 0; i < state_->prepared.size(); ++i) {
    const auto& own = state_->parameters.at(state_->prepared[i]);
    if (own.error.defined()) entries[fmt::format("error.{}", i)] = own.error;
    if (own.factor.defined()) entries[fmt::format("factor.{}", i)] = own.factor;
  }
  entries["steps"] = torch::tensor(state_->steps);
  return entries;
}

void PowerSGD::load_state_dict(const std::map<std::string, Tensor>& state) {
  const auto entries = state_dict();
  for (const auto& [name, own] : entries) {
    const auto found = state.find(name);
    if (found != state.end() && found->second.sizes() == own.sizes()) continue;
    throw InvalidArgument(
        "ddp",
        {.code = ErrorCode::kBadOption,
         .what = "this is no state of PowerSGD for these parameters: " + name,
         .expected = fmt::format("[{}]", fmt::join(own.sizes(), ", ")),
         .got = found == state.end()
                    ? "none"
                    : fmt::format("[{}]",
                                  fmt::join(found->second.sizes(), ", "))});
  }
  for (const auto& [name, own] : entries) own.copy_(state.at(name));
  state_->steps = state.at("steps").item<int64_t>();
}

}  // namespace lockstep
