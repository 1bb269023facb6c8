#include "lockstep/lm/models/kernels.h"

#include <functional>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "lockstep/lm/models/cross_entropy_rows.h"
#include "lockstep/lm/models/fused_attention.h"
#include "lockstep/lm/models/gelu.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/lm/models/norm.h"

namespace lockstep::models {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

/// A kernel, or the formula that it stands for, of float32 vectors and of
/// matrices in float32 or bfloat16.
using Formula = std::function<variable_list(const variable_list&)>;

struct Twins {
  Formula kernel;
  Formula plain;
  variable_list inputs;
};

/// Results, and the gradients of the inputs for fixed upstream gradients.
variable_list run(const Formula& formula, const variable_list& values,
                  torch::ScalarType type) {
  variable_list inputs;
  for (const auto& value : values) {
    inputs.push_back((type == torch::kFloat64 ? value.to(type) : value.clone())
                         .detach()
                         .requires_grad_());
  }
  variable_list all = formula(inputs);
  variable_list upstreams;
  for (const auto& output : all) {
    upstreams.push_back(torch::linspace(-1, 1.5, output.numel())
                            .view(output.sizes())
                            .to(output.scalar_type()));
  }
  for (const auto& gradient : torch::autograd::grad(all, inputs, upstreams)) {
    all.push_back(gradient);
  }
  return all;
}

/// Compares a kernel with its formula in float64. The error is in units of the
/// largest value, because sums of many terms cancel.
void expect_twins(const Twins& twins, double tolerance) {
  const variable_list got = run(twins.kernel, twins.inputs, torch::kFloat32);
  const variable_list expected =
      run(twins.plain, twins.inputs, torch::kFloat64);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor wide = got[i].to(torch::kFloat64);
    const double scale = expected[i].abs().max().item<double>() + 1e-30;
    EXPECT_LT((wide - expected[i]).abs().max().item<double>() / scale,
              tolerance)
        << "result " << i;
  }
}

void expect_same_bits(const Twins& twins) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const variable_list one = run(twins.kernel, twins.inputs, torch::kFloat32);
  at::set_num_threads(3);
  const variable_list three = run(twins.kernel, twins.inputs, torch::kFloat32);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i], three[i])) << "result " << i;
  }
}

/// Compares the gradients of the sum of the squares of the gradients.
void expect_second_derivatives(const Twins& twins) {
  const auto second = [&](const Formula& formula, torch::ScalarType type) {
    variable_list inputs;
    for (const auto& value : twins.inputs) {
      inputs.push_back(value.to(type).detach().clone().requires_grad_());
    }
    Tensor sum = torch::zeros({}, type);
    for (const auto& output : formula(inputs)) {
      sum = sum + output.to(type).square().sum();
    }
    Tensor squares = torch::zeros({}, type);
    for (const auto& gradient :
         torch::autograd::grad({sum}, inputs, {}, /*retain_graph=*/true,
                               /*create_graph=*/true)) {
      squares = squares + gradient.square().sum();
    }
    return torch::autograd::grad({squares}, inputs);
  };
  const variable_list got = second(twins.kernel, torch::kFloat32);
  const variable_list expected = second(twins.plain, torch::kFloat64);
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = expected[i].abs().max().item<double>();
    EXPECT_LT(
        (got[i].to(torch::kFloat64) - expected[i]).abs().max().item<double>() /
            scale,
        1e-4)
        << "input " << i;
  }
}

// The kernels round each operation of float32, so a result is off by a few
// 2^-24 and the rounding of its sums.
constexpr double kFloat = 3e-6;
// A bfloat16 has 8 bits, so rounding a result is off by up to 2^-9, and each
// rounding of what it is computed from adds as much.
constexpr double kHalf = 2e-2;

double tolerance_of(torch::ScalarType type) {
  return type == torch::kFloat32 ? kFloat : kHalf;
}

Tensor random(std::initializer_list<int64_t> shape, torch::ScalarType type,
              double scale = 1) {
  return (torch::randn(shape) * scale).to(type);
}

/// x, delta, bias, weight, shift. 150 rows are three blocks of sums.
Twins norm_twins(torch::ScalarType type, NormKind kind) {
  torch::manual_seed(1);
  const bool has_mean = kind == NormKind::kLayer;
  const auto kernel = [=](const variable_list& in) -> variable_list {
    const NormedSum both =
        add_and_norm(in[0], in[1], in[2], in[3], has_mean ? in[4] : Tensor(),
                     1e-5, kind, type);
    return {both.sum, has_mean ? both.normed : both.normed + in[4]};
  };
  const auto plain = [=](const variable_list& in) -> variable_list {
    const Tensor sum = in[0] + (in[1] + in[2]);
    const Tensor centred =
        has_mean ? sum - sum.mean(-1, /*keepdim=*/true) : sum;
    const Tensor inverse =
        torch::rsqrt(centred.square().mean(-1, /*keepdim=*/true) + 1e-5);
    return {sum, centred * inverse * in[3] + in[4]};
  };
  return {kernel,
          plain,
          {random({3, 50, 48}, torch::kFloat32), random({3, 50, 48}, type),
           random({48}, torch::kFloat32), random({48}, torch::kFloat32),
           random({48}, torch::kFloat32)}};
}

class Kernels : public testing::TestWithParam<torch::ScalarType> {};

TEST_P(Kernels, AddAndNormIsItsFormula) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    const Twins twins = norm_twins(GetParam(), kind);
    expect_twins(twins, tolerance_of(GetParam()));
    expect_same_bits(twins);
  }
}

// Without anything to add, the sum is the stream itself.
TEST_P(Kernels, NormAloneIsItsFormula) {
  const torch::ScalarType type = GetParam();
  torch::manual_seed(2);
  const Twins twins{
      [=](const variable_list& in) -> variable_list {
        const NormedSum both = add_and_norm(in[0], {}, {}, in[1], in[2], 1e-5,
                                            NormKind::kLayer, type);
        EXPECT_TRUE(both.sum.is_alias_of(in[0]));
        return {both.sum * 2, both.normed};
      },
      [](const variable_list& in) -> variable_list {
        return {in[0] * 2, torch::layer_norm(in[0], {32}, in[1], in[2], 1e-5)};
      },
      {random({70, 32}, torch::kFloat32), random({32}, torch::kFloat32),
       random({32}, torch::kFloat32)}};
  expect_twins(twins, tolerance_of(type));
  expect_same_bits(twins);
}

TEST_P(Kernels, AddWithBiasIsItsFormula) {
  torch::manual_seed(3);
  const Twins twins{
      [](const variable_list& in) -> variable_list {
        return {add_with_bias(in[0], in[1], in[2])};
      },
      [](const variable_list& in) -> variable_list {
        return {in[0] + in[1] + in[2]};
      },
      {random({2, 70, 32}, torch::kFloat32), random({2, 70, 32}, GetParam()),
       random({32}, torch::kFloat32)}};
  expect_twins(twins, tolerance_of(GetParam()));
  expect_same_bits(twins);
}

Twins gelu_twins(torch::ScalarType type) {
  torch::manual_seed(4);
  return {[](const variable_list& in) -> variable_list {
            return {linear_gelu(in[0], in[1], in[2])};
          },
          [](const variable_list& in) -> variable_list {
            return {torch::gelu(torch::matmul(in[0], in[1]) + in[2], "tanh")};
          },
          {random({2, 70, 32}, type), random({32, 48}, type, 0.3),
           random({48}, torch::kFloat32)}};
}

TEST_P(Kernels, LinearGeluIsItsFormula) {
  expect_twins(gelu_twins(GetParam()), tolerance_of(GetParam()));
}

Twins attention_twins(torch::ScalarType type, int64_t tokens, int64_t width) {
  torch::manual_seed(5);
  constexpr int64_t kHeads = 2;
  return {[](const variable_list& in) -> variable_list {
            return {fused_attention(in[0], in[1], kHeads)};
          },
          [](const variable_list& in) -> variable_list {
            const auto parts = (in[0] + in[1])
                                   .view({3, in[0].size(1), 3, kHeads, -1})
                                   .permute({2, 0, 3, 1, 4})
                                   .unbind(0);
            return {at::scaled_dot_product_attention(
                        parts[0], parts[1], parts[2], {}, 0, /*causal=*/true)
                        .transpose(1, 2)
                        .reshape({3, in[0].size(1), -1})};
          },
          {random({3, tokens, 3 * kHeads * width}, type, 2),
           random({3 * kHeads * width}, torch::kFloat32)}};
}

TEST_P(Kernels, FusedAttentionIsItsFormula) {
  for (const int64_t tokens : {1, 5, 32, 64, 83}) {
    for (const int64_t width : {16, 32, 48}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << width);
      const Twins twins = attention_twins(GetParam(), tokens, width);
      // Sums of products of a head, and then of a softmax's slopes, cancel.
      expect_twins(twins, 3 * tolerance_of(GetParam()));
      expect_same_bits(twins);
    }
  }
}

TEST_P(Kernels, CrossEntropyOfRowsIsItsFormula) {
  torch::manual_seed(6);
  for (const int64_t vocabulary : {7, 65, 1000}) {
    const Tensor logits = random({30, vocabulary}, GetParam(), 4);
    const Tensor targets = torch::randint(vocabulary, {30}, torch::kInt64);
    const Tensor weights = torch::rand({30});
    const Tensor wide = logits.to(torch::kFloat64).requires_grad_();
    const Tensor expected =
        -(wide.log_softmax(1).gather(1, targets.unsqueeze(1)).squeeze(1) *
          weights)
             .sum();
    const Tensor gradient = torch::autograd::grad({expected}, {wide})[0];
    const Tensor unchanged = logits.clone();
    EXPECT_NEAR(cross_entropy_of_rows(unchanged, targets, weights, false),
                expected.item<double>(), 1e-5);
    EXPECT_TRUE(unchanged.equal(logits));
    EXPECT_NEAR(cross_entropy_of_rows(logits, targets, weights, true),
                expected.item<double>(), 1e-5);
    EXPECT_LT(
        (logits.to(torch::kFloat64) - gradient).abs().max().item<double>(),
        tolerance_of(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels,
                         testing::Values(torch::kFloat32, torch::kBFloat16),
                         [](const auto& info) {
                           return info.param == torch::kFloat32 ? "float32"
                                                                : "bfloat16";
                         });

TEST(KernelsTwice, HaveSecondDerivatives) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    expect_second_derivatives(norm_twins(torch::kFloat32, kind));
  }
  expect_second_derivatives(gelu_twins(torch::kFloat32));
  const Twins attention = attention_twins(torch::kFloat32, 9, 16);
  // LibTorch's attention has no second derivatives.
  expect_second_derivatives(
      {attention.kernel,
       [](const variable_list& in) -> variable_list {
         const auto parts = (in[0] + in[1])
                                .view({3, 9, 3, 2, 16})
                                .permute({2, 0, 3, 1, 4})
                                .unbind(0);
         const Tensor scores =
             torch::matmul(parts[0], parts[1].transpose(-2, -1)) / 4;
         const Tensor seen = torch::ones({9, 9}, torch::kBool).tril();
         const Tensor weights =
             scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
         return {torch::matmul(weights, parts[2])
                     .transpose(1, 2)
                     .reshape({3, 9, 32})};
       },
       attention.inputs});
}

/// The loss and the gradients of all parameters of a model, in float64.
variable_list step_of(LanguageModel& model, const Tensor& ids, bool has_bf16) {
  at::autocast::set_autocast_enabled(at::kCPU, has_bf16);
  const auto loss =
      chunked_cross_entropy(model.hidden(ids).flatten(0, 1), model.head(),
                            ids.roll(-1, 1).flatten())
          .loss;
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  variable_list all = {loss.detach().to(torch::kFloat64)};
  for (const auto& gradient :
       torch::autograd::grad({loss}, model.parameters())) {
    all.push_back(gradient.to(torch::kFloat64));
  }
  return all;
}

// A model in float64 is computed with LibTorch's operators.
TEST(KernelsOfModels, AreTheOperatorsOfLibTorch) {
  for (const char* name : {"gpt-char", "llama-char"}) {
    torch::manual_seed(7);
    auto spec = language_spec(name);
    spec.layers = 2;
    const auto model = make_language_model(spec);
    const auto wide = std::dynamic_pointer_cast<LanguageModel>(model->clone());
    wide->to(torch::kFloat64);
    const Tensor ids = torch::randint(65, {3, 40}, torch::kInt64);
    const variable_list expected = step_of(*wide, ids, false);
    for (const bool has_bf16 : {false, true}) {
      const variable_list got = step_of(*model, ids, has_bf16);
      for (size_t i = 0; i < got.size(); ++i) {
        // Roundings of all layers add up.
        EXPECT_LT((got[i] - expected[i]).norm().item<double>(),
                  (has_bf16 ? 3e-2 : 1e-5) * expected[i].norm().item<double>())
            << name << (has_bf16 ? " in bf16, " : ", ") << i;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::models
