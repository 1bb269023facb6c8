#include "lockstep/parallel/step/differentiable_inputs.h"

#include <gtest/gtest.h>

#include "lockstep/parallel/module/shared.h"

namespace lockstep {
namespace {

using c10::IValue;
using torch::Tensor;

TEST(DifferentiableInputs, HaveOtherSamplesInTheSameOrder) {
  const auto rows = [](int64_t first, int64_t last) {
    return torch::arange(first, last).unsqueeze(1);
  };
  const Tensor whole = torch::arange(5);
  const IValue batch = c10::ivalue::Tuple::create(
      {IValue(torch::arange(10)), IValue(rows(0, 10)), shared(whole)});
  const DifferentiableInputs inputs(batch, /*needs_graph=*/false);
  const IValue part = c10::ivalue::Tuple::create(
      {IValue(torch::arange(5, 10)), IValue(rows(5, 10)), IValue(whole)});
  const IValue others = inputs.with_other_samples(part, 0);
  const auto& tensors = others.toTupleRef().elements();
  const Tensor expected = torch::tensor({7, 7, 8, 8, 9});
  EXPECT_TRUE(tensors[0].toTensor().equal(expected));
  EXPECT_TRUE(tensors[1].toTensor().equal(expected.unsqueeze(1)));
  EXPECT_TRUE(tensors[2].toTensor().equal(whole));
}

TEST(DifferentiableInputs, HaveNoOtherSampleThanTheOnlyOne) {
  const IValue batch =
      c10::ivalue::Tuple::create({IValue(torch::ones({1, 3}))});
  const DifferentiableInputs inputs(batch, /*needs_graph=*/false);
  const IValue others = inputs.with_other_samples(batch, 0);
  EXPECT_TRUE(
      others.toTupleRef().elements()[0].toTensor().equal(torch::ones({1, 3})));
}

}  // namespace
}  // namespace lockstep
