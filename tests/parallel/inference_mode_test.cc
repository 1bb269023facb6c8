// Evaluation under c10::InferenceMode, before and after training.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using testing_nets::Net;
using testing_nets::NetImpl;
using testing_nets::slices;
using torch::Tensor;

class InferenceModes : public testing::TestWithParam<Buffers> {};
INSTANTIATE_TEST_SUITE_P(Both, InferenceModes,
                         testing::Values(Buffers::kFirstShard, Buffers::kMean));

TEST_P(InferenceModes, LeaveNothingBehindThatTrainingCannotUse) {
  Net net;
  net->drop->options.p(0);
  Net twin = std::dynamic_pointer_cast<NetImpl>(net->clone());
  const auto options = DataParallelOptions().buffers(GetParam()).shards(2);
  const DataParallel evaluated(net, slices(2), options);
  const DataParallel quiet(twin, slices(2), options);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::SGD twin_sgd(twin->parameters(), 0.1);
  const Tensor x = torch::randn({8, 3, 5, 5});
  const Tensor y = torch::randint(4, {8});
  for (int step = 0; step < 3; ++step) {
    {
      const c10::InferenceMode inference;
      evaluated->eval();
      EXPECT_TRUE(evaluated->forward(x).allclose(net->forward(x), 1e-5, 1e-6));
      evaluated->train();
    }
    evaluated->train_step(x, y, testing_nets::cross_entropy, sgd);
    quiet->train_step(x, y, testing_nets::cross_entropy, twin_sgd);
    EXPECT_EQ(testing_nets::bytes_of(*net), testing_nets::bytes_of(*twin));
  }
}

TEST(InferenceMode, MayEncloseTheWrap) {
  Net net;
  std::shared_ptr<DataParallel<NetImpl>> model;
  {
    const c10::InferenceMode inference;
    model = std::make_shared<DataParallel<NetImpl>>(net, slices(2));
    (*model)->forward(torch::randn({8, 3, 5, 5}));
  }
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const Tensor before = net->fc->weight.clone();
  (*model)->train_step(torch::randn({8, 3, 5, 5}), torch::randint(4, {8}),
                       testing_nets::cross_entropy, sgd);
  EXPECT_FALSE(net->fc->weight.equal(before));
}

TEST(InferenceMode, FollowsACastWithinIt) {
  Net net;
  const DataParallel model(net, slices(2));
  model->eval();
  {
    const c10::InferenceMode inference;
    net->norm->running_mean.fill_(0.5);
    model->forward(torch::randn({8, 3, 5, 5}));
  }
  model->to(torch::kDouble);
  const Tensor x = torch::randn({8, 3, 5, 5}, torch::kDouble);
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(model->forward(x).allclose(net->forward(x)));
  }
  model->train();
  model->forward(x).sum().backward();
  EXPECT_TRUE(net->fc->weight.grad().defined());
}

}  // namespace
}  // namespace lockstep
