// DataParallel and DistributedDataParallel as torch::nn modules.
#include <sstream>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::wrapper_module_test {
namespace {

using testing_nets::Mlp;
using testing_nets::MlpImpl;
using testing_nets::slices;
using torch::Tensor;

Tensor inputs() {
  return torch::arange(8 * 6, torch::kFloat).sin().view({8, 6});
}

/// A model with a wrapped part, as a user registers it.
struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(DataParallel<MlpImpl> wrapped)
      : net(register_module("net", wrapped)),
        head(register_module("head", torch::nn::Linear(4, 2))) {}
  Tensor forward(const Tensor& x) { return head(net(x)); }

  DataParallel<MlpImpl> net{nullptr};
  torch::nn::Linear head{nullptr};
};

template <class Model>
std::string saved(const Model& model) {
  std::ostringstream out;
  torch::save(model, out);
  return out.str();
}

template <class Model>
void load(const std::string& bytes, Model& model) {
  std::istringstream in(bytes);
  torch::load(model, in);
}

TEST(WrapperModule, HasTheNamesThatPyTorchHas) {
  const Mlp net;
  const DataParallel<MlpImpl> model(net, slices(2));
  const DistributedDataParallel<MlpImpl> ranked(net, ProcessGroup());
  const std::vector<std::string> expected{
      "module.net.0.weight", "module.net.0.bias", "module.net.2.weight",
      "module.net.2.bias"};
  EXPECT_EQ(model->named_parameters().keys(), expected);
  EXPECT_EQ(ranked->named_parameters().keys(), expected);
  EXPECT_EQ(model->module()->named_parameters().keys(),
            net->named_parameters().keys());
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_TRUE(parameters[p].is_same(net->parameters()[p]));
  }
}

TEST(WrapperModule, IsPrintedAsInPyTorch) {
  const torch::nn::Linear net(3, 2);
  std::ostringstream out;
  out << DataParallel<torch::nn::LinearImpl>(net, slices(1)) << "\n"
      << DistributedDataParallel<torch::nn::LinearImpl>(net, ProcessGroup());
  const std::string linear =
      "(\n  (module): torch::nn::Linear(in_features=3, out_features=2, "
      "bias=true)\n)";
  EXPECT_EQ(out.str(),
            "DataParallel" + linear + "\nDistributedDataParallel" + linear);
}

TEST(WrapperModule, IsSavedAndLoadedWithTorch) {
  const DataParallel<MlpImpl> model(Mlp(), slices(2));
  const Tensor expected = model(inputs());
  DataParallel<MlpImpl> other(Mlp(), slices(2));
  // Makes the replicas, which have to follow.
  EXPECT_FALSE(torch::equal(other(inputs()), expected));
  load(saved(model), other);
  EXPECT_TRUE(torch::equal(other(inputs()), expected));
  // The other wrapper has the same names, and the module itself has its own.
  DistributedDataParallel<MlpImpl> ranked(Mlp(), ProcessGroup{});
  load(saved(model), ranked);
  EXPECT_TRUE(torch::equal(ranked(inputs()), expected));
  Mlp plain;
  load(saved(model->module()), plain);
  EXPECT_TRUE(torch::equal(plain->forward(inputs()), expected));
  EXPECT_THROW(load(saved(model), plain), c10::Error);
}

TEST(WrapperModule, IsPartOfAnotherModule) {
  const Mlp net;
  const auto outer =
      std::make_shared<OuterImpl>(DataParallel<MlpImpl>(net, slices(2)));
  EXPECT_EQ(outer->named_parameters().keys().front(),
            "net.module.net.0.weight");
  outer->eval();
  EXPECT_FALSE(net->is_training());
  EXPECT_FALSE(outer->net->is_training());
  outer->train();
  EXPECT_TRUE(net->is_training());

  torch::optim::SGD optimizer(outer->parameters(), 0.1);
  const Tensor before = net->parameters()[0].detach().clone();
  outer->forward(inputs()).square().mean().backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
  optimizer.step();
  EXPECT_FALSE(torch::equal(net->parameters()[0], before));
  outer->zero_grad();
  EXPECT_FALSE(net->parameters()[0].grad().defined());

  const Tensor expected = outer->forward(inputs());
  const auto other =
      std::make_shared<OuterImpl>(DataParallel<MlpImpl>(Mlp(), slices(2)));
  std::istringstream in(saved(outer));
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  other->load(archive);
  EXPECT_TRUE(torch::equal(other->forward(inputs()), expected));
}

TEST(WrapperModule, ChangesItsTypeWithTheModule) {
  const Mlp net;
  const DataParallel<MlpImpl> model(net, slices(2));
  model->to(torch::kDouble);
  EXPECT_EQ(net->parameters()[0].scalar_type(), torch::kDouble);
  EXPECT_EQ(model(inputs().to(torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST(WrapperModule, ThrowsIfItIsEmpty) {
  const DataParallel<MlpImpl> model{nullptr};
  EXPECT_TRUE(model.is_empty());
  EXPECT_THROW(model->zero_grad(), c10::Error);
}

class WrapperModuleOfRanks : public testing_ddp::OnBackends {};

TEST_P(WrapperModuleOfRanks, LoadsWhatEachRankSaved) {
  run_on_ranks(2, [](const ProcessGroup& group) {
    const DistributedDataParallel<MlpImpl> model(
        testing_ddp::filled(std::make_shared<MlpImpl>()), group);
    model(inputs()).square().mean().backward();
    torch::optim::SGD(model->parameters(), 0.1).step();
    const Tensor expected = model(inputs()).detach();
    DistributedDataParallel<MlpImpl> other(
        testing_ddp::filled(std::make_shared<MlpImpl>()), group);
    load(saved(model), other);
    TORCH_CHECK(torch::equal(other(inputs()), expected));
  });
}

INSTANTIATE_TEST_SUITE_P(, WrapperModuleOfRanks, testing::Values("shm", "tcp"));

}  // namespace
}  // namespace lockstep::wrapper_module_test
