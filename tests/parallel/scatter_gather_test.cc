#include "lockstep/parallel/module/scatter_gather.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using c10::IValue;
using testing_nets::error_of;
using testing_nets::slices;
using torch::Tensor;

TEST(Scatter, GivesFewerChunksThanDevices) {
  const auto parts = scatter(torch::arange(5), slices(4));
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(parts[0].toTensor().equal(torch::tensor({0, 1})));
  EXPECT_TRUE(parts[2].toTensor().equal(torch::tensor({4})));
}

TEST(Scatter, SharesTheBatchsMemoryAmongSlices) {
  const Tensor batch = torch::zeros({4, 2});
  const auto parts = scatter(batch, slices(2));
  EXPECT_TRUE(parts[1].toTensor().is_alias_of(batch));
}

TEST(Scatter, RecursesIntoTuplesListsAndDicts) {
  c10::Dict<std::string, Tensor> dict;
  dict.insert("mask", torch::ones({6}));
  c10::List<Tensor> list({torch::arange(6), torch::arange(6) * 2});
  const IValue batch = c10::ivalue::Tuple::create(
      {torch::zeros({6, 3}), dict, list, IValue(7), IValue("name"), IValue()});
  const auto parts = scatter(batch, slices(3));
  ASSERT_EQ(parts.size(), 3u);
  const auto& second = parts[1].toTupleRef().elements();
  EXPECT_EQ(second[0].toTensor().size(0), 2);
  EXPECT_EQ(second[1].toGenericDict().at("mask").toTensor().size(0), 2);
  EXPECT_TRUE(second[2].toTensorVector()[1].equal(torch::tensor({4, 6})));
  EXPECT_EQ(second[3].toInt(), 7);
  EXPECT_EQ(second[4].toStringRef(), "name");
  EXPECT_TRUE(second[5].isNone());
}

TEST(Scatter, IsUndoneByGather) {
  for (const int64_t n : {1, 2, 5, 64}) {
    for (const int k : {1, 2, 3, 5}) {
      for (const int64_t dim : {0, 1, -1}) {
        const Tensor x = torch::randn({n, n, 3});
        const auto parts = scatter(x, slices(k), dim);
        const Tensor back = gather(parts, slices(k)[0], dim).toTensor();
        EXPECT_TRUE(back.equal(x)) << n << " " << k << " " << dim;
      }
    }
  }
}

TEST(Scatter, TeachesWhatAScalarTensorShouldBe) {
  const auto text = error_of([] { scatter(torch::tensor(1.0), slices(2)); });
  EXPECT_NE(text.find("0-dimensional"), std::string::npos) << text;
  EXPECT_NE(text.find("pass it as a number"), std::string::npos) << text;
}

TEST(Scatter, RefusesInputsThatSplitDifferently) {
  const IValue batch =
      c10::ivalue::Tuple::create({torch::zeros({6, 3}), torch::zeros({1})});
  const auto text = error_of([&] { scatter(batch, slices(3)); });
  EXPECT_NE(text.find("input[1] of shape [1]"), std::string::npos) << text;
}

TEST(Scatter, RefusesTensorsOfDifferentSizes) {
  // Both give two chunks.
  const IValue batch =
      c10::ivalue::Tuple::create({torch::zeros({8, 3}), torch::zeros({16})});
  const auto text = error_of([&] { scatter(batch, slices(2)); });
  EXPECT_NE(text.find("expected 8, as input[0] of shape [8, 3] has"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("lockstep::shared(t)"), std::string::npos) << text;
}

TEST(Scatter, RefusesANestedTensor) {
  const Tensor nested = at::_nested_tensor_from_tensor_list(
      {torch::zeros({2, 3}), torch::zeros({4, 3})});
  const auto text = error_of([&] { scatter(nested, slices(2)); });
  EXPECT_NE(text.find("is a nested tensor"), std::string::npos) << text;
  EXPECT_NE(text.find("to_padded_tensor(0)"), std::string::npos) << text;
  EXPECT_EQ(scatter(nested.to_padded_tensor(0), slices(2)).size(), 2u);
}

TEST(Scatter, RefusesASparseTensor) {
  const auto text =
      error_of([] { scatter(torch::eye(4).to_sparse(), slices(2)); });
  EXPECT_NE(text.find("got the layout Sparse"), std::string::npos) << text;
  EXPECT_NE(text.find("t.to_dense()"), std::string::npos) << text;
}

TEST(Scatter, NamesAMissingDimension) {
  const auto text = error_of([] { scatter(torch::zeros({4}), slices(2), 1); });
  EXPECT_NE(text.find("no dimension 1"), std::string::npos) << text;
}

TEST(Gather, MakesAVectorOfScalarsAndWarns) {
  LogCapture log;
  const std::vector<IValue> outputs{torch::tensor(1.0), torch::tensor(2.0)};
  const Tensor all = gather(outputs, slices(2)[0]).toTensor();
  EXPECT_TRUE(all.equal(torch::tensor({1.0, 2.0})));
  EXPECT_NE(log.text().find("scalars"), std::string::npos);
}

TEST(Gather, RefusesANestedTensor) {
  const IValue nested = at::_nested_tensor_from_tensor_list(
      {torch::zeros({2, 3}), torch::zeros({4, 3})});
  const auto text =
      error_of([&] { gather(std::vector<IValue>{nested}, slices(1)[0]); });
  EXPECT_NE(text.find("is a nested tensor"), std::string::npos) << text;
}

TEST(Gather, KeepsNestedStructure) {
  const auto output = [](double base) {
    c10::Dict<std::string, Tensor> dict;
    dict.insert("a", torch::full({2}, base));
    dict.insert("b", torch::full({2, 2}, base + 1));
    return IValue(c10::ivalue::Tuple::create({dict, IValue()}));
  };
  const std::vector<IValue> outputs{output(0), output(10)};
  const IValue all = gather(outputs, slices(2)[0]);
  const auto& elements = all.toTupleRef().elements();
  EXPECT_TRUE(elements[0].toGenericDict().at("a").toTensor().equal(
      torch::tensor({0., 0., 10., 10.}, torch::kFloat32)));
  EXPECT_EQ(elements[0].toGenericDict().at("b").toTensor().size(0), 4);
  EXPECT_TRUE(elements[1].isNone());
}

TEST(Gather, ExplainsWhatItCannotGather) {
  const auto d = slices(2)[0];
  const std::vector<IValue> numbers{IValue(1), IValue(2)};
  EXPECT_NE(error_of([&] { gather(numbers, d); }).find("return it as a tensor"),
            std::string::npos);
  const std::vector<IValue> shapes{torch::zeros({2, 3}), torch::zeros({2, 4})};
  const auto text = error_of([&] { gather(shapes, d); });
  EXPECT_NE(text.find("expected size [2, 3]"), std::string::npos) << text;
  EXPECT_NE(text.find("got [2, 4]"), std::string::npos) << text;
  c10::Dict<std::string, Tensor> one;
  one.insert("a", torch::zeros({1}));
  c10::Dict<std::string, Tensor> two = one.copy();
  two.insert("b", torch::zeros({1}));
  const std::vector<IValue> dicts{one, two};
  EXPECT_NE(error_of([&] { gather(dicts, d); }).find("same number of keys"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
