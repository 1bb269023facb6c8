// Undefined tensors, C++'s None, as inputs and outputs: LibTorch's own modules
// take and give them.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/transformer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using c10::IValue;
using testing_nets::slices;
using torch::Tensor;

Tensor wave(at::IntArrayRef shape, double phase = 0) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (torch::arange(count, torch::kDouble) * 0.7 + phase).sin().view(shape);
}

void fill(torch::nn::Module& module) {
  module.to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (Tensor& parameter : module.parameters()) {
    parameter.copy_(wave(parameter.sizes(), ++phase) * 0.4);
  }
}

/// Compares outputs and gradients of `module` alone and over two devices.
template <class Module, class Forward>
void expect_same(Module& module, const Forward& forward) {
  const auto run = [&](auto& model, std::vector<Tensor>& outputs) {
    module->zero_grad();
    outputs = forward(model);
    Tensor loss = torch::zeros({}, torch::kDouble);
    for (const Tensor& output : outputs) {
      if (output.defined()) loss = loss + (output * wave({1})).square().mean();
    }
    loss.backward();
    for (const Tensor& parameter : module->parameters()) {
      outputs.push_back(parameter.grad().clone());
    }
  };
  std::vector<Tensor> expected, got;
  run(*module, expected);
  DataParallel model(module, slices(2), DataParallelOptions().dim(1));
  run(*model, got);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-10, 1e-10)) << i;
  }
}

// [length, batch, features]: the batch is dimension 1.
TEST(UndefinedTensors, AttentionWithoutMasksAndWeights) {
  torch::nn::MultiheadAttention attention(
      torch::nn::MultiheadAttentionOptions(8, 2));
  fill(*attention);
  expect_same(attention, [](auto& model) {
    const Tensor x = wave({3, 4, 8}), y = wave({5, 4, 8});
    const auto [output, weights] =
        model.forward(x, y, y, /*key_padding_mask=*/Tensor(),
                      /*need_weights=*/false, /*attn_mask=*/Tensor(),
                      /*average_attn_weights=*/true);
    return std::vector<Tensor>{output, weights};
  });
}

TEST(UndefinedTensors, ATransformerWithoutMasks) {
  torch::nn::Transformer transformer(
      torch::nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(8).dropout(0));
  fill(*transformer);
  expect_same(transformer, [](auto& model) {
    const Tensor source = wave({3, 4, 8}), target = wave({2, 4, 8}, 1);
    return std::vector<Tensor>{model.forward(source, target, Tensor(), Tensor(),
                                             Tensor(), Tensor(), Tensor(),
                                             Tensor())};
  });
}

TEST(UndefinedTensors, AreScatteredAndGatheredAsTheyAre) {
  c10::List<Tensor> list({torch::arange(4), Tensor()});
  c10::Dict<std::string, Tensor> dict;
  dict.insert("none", Tensor());
  const IValue batch =
      c10::ivalue::Tuple::create({Tensor(), list, dict, IValue()});
  const auto parts = scatter(batch, slices(2));
  ASSERT_EQ(parts.size(), 2u);
  for (const IValue& value :
       {parts[0], parts[1], gather(parts, slices(1)[0])}) {
    const auto& elements = value.toTupleRef().elements();
    EXPECT_FALSE(elements[0].toTensor().defined());
    EXPECT_FALSE(elements[1].toTensorVector()[1].defined());
    EXPECT_FALSE(elements[2].toGenericDict().at("none").toTensor().defined());
    EXPECT_TRUE(elements[3].isNone());
  }
  EXPECT_TRUE(gather(parts, slices(1)[0])
                  .toTupleRef()
                  .elements()[1]
                  .toTensorVector()[0]
                  .equal(torch::arange(4)));
}

TEST(UndefinedTensors, OfSomeReplicasOnlyAreAnErrorByName) {
  for (const bool is_first : {true, false}) {
    const Tensor one = torch::ones({2}), two = Tensor();
    const std::vector<IValue> outputs{
        c10::ivalue::Tuple::create({one, is_first ? two : one}),
        c10::ivalue::Tuple::create({one, is_first ? one : two})};
    std::string message;
    try {
      gather(outputs, slices(1)[0]);
    } catch (const ParallelError& error) {
      message = error.what();
    }
    EXPECT_PRED2(contains, message,
                 "output[1] is an undefined tensor on some replicas only");
  }
}

}  // namespace
}  // namespace lockstep
