// The pitfalls of nn.DataParallel that its users run into: each gives a
// message that says what to do.
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/log.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/group/balance.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "tests/parallel/nets.h"

namespace lockstep::pitfalls_test {
namespace {

using testing_nets::error_of;
using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::slices;
using torch::Tensor;

void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST(Pitfalls, NameAParameterThatIsNotOnTheFirstDevice) {
  Mlp net;
  to(*net, slices(2)[1]);
  expect_parts(error_of([&] { DataParallel model(net, slices(2)); }),
               {"parameter 'net.0.weight' is not on the first device",
                "expected cpu:0, the first of the devices", "got cpu:1",
                "lockstep::to(*model, devices[0])"});
  to(*net, slices(2)[0]);
  EXPECT_EQ(error_of([&] { DataParallel model(net, slices(2)); }),
            "no exception");
}

TEST(Pitfalls, NameAnInputWithoutAReplicaOnItsDevice) {
  Mlp net;
  const DataParallel model(net, slices(2));
  const Tensor meta = torch::zeros({4, 6}, torch::kMeta);
  expect_parts(error_of([&] { model->forward(meta); }),
               {"input[0] is on a device without a replica",
                "expected cpu:0, cpu:1", "got meta", "x.to("});
  const Device third = slices(3)[2];
  const MemoryScope scope(third);
  const Tensor elsewhere = torch::zeros({4, 6});
  expect_parts(error_of([&] { model->forward(elsewhere); }), {"got cpu:2"});
}

TEST(Pitfalls, WarnOfABatchSmallerThanTheNumberOfDevices) {
  Mlp net;
  const DataParallel model(net, slices(3));
  LogCapture log;
  EXPECT_EQ(model->forward(torch::zeros({2, 6})).size(0), 2);
  expect_parts(log.text(), {"a batch of 2 makes 2 chunks for 3 shards", "cpu:2",
                            "use a batch of at least 3"});
}

TEST(Pitfalls, TellOfABatchSizeThatChanges) {
  Mlp net;
  const DataParallel model(net, slices(2));
  LogCapture log;
  model->forward(torch::zeros({8, 6}));
  model->forward(torch::zeros({5, 6}));
  expect_parts(log.text(), {"changed from 8 to 5", "3/2"});
}

TEST(Pitfalls, RefuseAZeroDimensionalTensor) {
  Mlp net;
  const DataParallel model(net, slices(2));
  expect_parts(error_of([&] { model->forward(torch::tensor(1.0)); }),
               {"0-dimensional", "unsqueeze"});
}

struct PlainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x; }
};

TEST(Pitfalls, SayHowToWrapAModuleThatCannotBeCloned) {
  const auto net = std::make_shared<PlainImpl>();
  expect_parts(error_of([&] { DataParallel<PlainImpl> model(net, slices(2)); }),
               {"can't be cloned", "torch::nn::Cloneable", "pass a factory"});
}

struct DerivedMlpImpl : MlpImpl {};

/// The cure: the base class is Cloneable as the derived class.
template <class Self>
struct BaseImpl : torch::nn::Cloneable<Self> {
  BaseImpl() { reset(); }
  void reset() override {
    net = this->register_module("net", testing_nets::mlp());
  }
  Tensor forward(const Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net{nullptr};
};
struct FinalImpl : BaseImpl<FinalImpl> {};

template <class M>
void expect_same_as_plain(const std::shared_ptr<M>& net,
                          const DataParallel<M>& model) {
  const Tensor x = torch::randn({5, 6});
  EXPECT_TRUE(model->forward(x).allclose(net->forward(x), 1e-5, 1e-6));
}

TEST(Pitfalls, NameTheTypesOfADerivedClassThatCannotBeCloned) {
  const auto net = std::make_shared<DerivedMlpImpl>();
  const std::vector<std::string> parts{
      "clone() of the module lockstep::pitfalls_test::",
      "expected lockstep::pitfalls_test::",
      "DerivedMlpImpl",
      "got lockstep::testing_nets::MlpImpl",
      "torch::nn::Cloneable<",
      "pass a factory",
      "[not-cloneable]"};
  expect_parts(error_of([&] { DataParallel model(net, slices(2)); }), parts);
  expect_parts(error_of([&] { replicate(net, slices(2)); }), parts);
  // Wrapped as its base class, the replicas would be of another class.
  const std::shared_ptr<MlpImpl> base = net;
  expect_parts(error_of([&] { DataParallel model(base, slices(2)); }), parts);
}

TEST(Pitfalls, WrapADerivedClassAsTheErrorSays) {
  const auto net = std::make_shared<DerivedMlpImpl>();
  const DataParallel<DerivedMlpImpl> made(
      net, [] { return std::make_shared<DerivedMlpImpl>(); }, slices(2));
  expect_same_as_plain(net, made);
  const auto other = std::make_shared<FinalImpl>();
  const DataParallel<FinalImpl> cloned(other, slices(2));
  expect_same_as_plain(other, cloned);
}

TEST(Pitfalls, RefuseAFactoryThatBuildsSomethingElse) {
  Mlp net;
  expect_parts(error_of([&] {
                 DataParallel<MlpImpl> model(
                     net.ptr(),
                     [] {
                       auto other = std::make_shared<MlpImpl>();
                       other->net->push_back(torch::nn::Linear(4, 4));
                       return other;
                     },
                     slices(2));
               }),
               {"another number of parameters", "expected 4", "got 6"});
}

TEST(Pitfalls, RefuseFewerShardsThanDevices) {
  Mlp net;
  expect_parts(error_of([&] {
                 DataParallel model(net, slices(3),
                                    DataParallelOptions().shards(2));
               }),
               {"fewer shards than devices", "at least 3", "got 2"});
}

TEST(Pitfalls, WarnWhenADeviceHasLessThanThreeQuartersOfAnother) {
  const std::vector<Capacity> even{{"cuda:0", 16, 80}, {"cuda:1", 12, 80}};
  EXPECT_FALSE(imbalance(even).has_value());
  const std::vector<Capacity> memory{{"cuda:0", 16, 80}, {"cuda:1", 11, 80}};
  expect_parts(imbalance(memory).value_or(""),
               {"cuda:1 has less than 75 % of the memory of cuda:0"});
  const std::vector<Capacity> cores{{"cpu:0", 0, 2}, {"cpu:1", 0, 1}};
  expect_parts(imbalance(cores).value_or(""),
               {"cpu:1 has less than 75 % of the cores of cpu:0"});
}

TEST(Pitfalls, ReplicasMadeByHandWorkToo) {
  Mlp net;
  const auto devices = slices(2);
  const auto replicas = replicate(net.ptr(), devices);
  const Tensor x = torch::randn({5, 6});
  const auto parts = scatter(x, devices);
  std::vector<c10::IValue> outputs;
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_FALSE(
        replicas[i]->parameters()[0].is_alias_of(net->parameters()[0]));
    outputs.emplace_back(replicas[i]->forward(parts[i].toTensor()));
  }
  EXPECT_TRUE(gather(outputs, devices[0])
                  .toTensor()
                  .allclose(net->forward(x), 1e-5, 1e-6));
}

}  // namespace
}  // namespace lockstep::pitfalls_test
