// Modules that compute a part again in the backward: the graph of the forward
// does not lead to that part's parameters.
#include <memory>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/checkpointed.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::checkpointing_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::CheckpointedNetImpl;
using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::gradients_of;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::plain_gradients;
using testing_ddp::targets;
using testing_nets::slices;
using torch::Tensor;

std::shared_ptr<CheckpointedNetImpl> new_net() {
  return filled(std::make_shared<CheckpointedNetImpl>());
}

/// NetImpl::clone() makes a NetImpl, which computes the same.
DataParallel<CheckpointedNetImpl> wrapped(
    const std::shared_ptr<CheckpointedNetImpl>& net, int devices) {
  return DataParallel<CheckpointedNetImpl>(
      net, [] { return std::make_shared<CheckpointedNetImpl>(); },
      slices(devices));
}

TEST(Checkpointing, GivesAForwardAllGradients) {
  for (const int devices : {1, 2, 3}) {
    const auto net = new_net();
    auto model = wrapped(net, devices);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      Tensor x = inputs(0, 7).requires_grad_();
      loss_of(model->forward(x), targets(0, 7)).backward();
      check_same(gradients_of(*net), plain_gradients(0, 7), 1e-6);
      const auto plain = new_net();
      Tensor other = inputs(0, 7).requires_grad_();
      loss_of(plain->forward(other), targets(0, 7)).backward();
      check_same({x.grad()}, {other.grad()}, 1e-6);
    }
  }
}

TEST(Checkpointing, CallsHooksOnTheParametersOnce) {
  const auto net = new_net();
  auto model = wrapped(net, 2);
  int calls = 0;
  net->first->weight.register_hook([&](const Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  loss_of(model->forward(inputs(0, 6)), targets(0, 6)).backward();
  EXPECT_EQ(calls, 1);
  check_same({net->first->weight.grad()}, {2 * plain_gradients(0, 6)[0]}, 1e-6);
}

TEST(Checkpointing, GivesAStepAllGradients) {
  for (const int devices : {1, 2, 3}) {
    const auto net = new_net();
    auto model = wrapped(net, devices);
    model->train_step(inputs(0, 7), targets(0, 7), loss_of);
    check_same(gradients_of(*net), plain_gradients(0, 7), 1e-6);
  }
}

TEST(Checkpointing, UpdatesAllParametersOverRanks) {
  const auto plain = new_net();
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(plain->forward(inputs(8 * step, 8)), targets(8 * step, 8))
        .backward();
    optimizer.step();
  }
  for (const char* backend : {"shm", "tcp"}) {
    EXPECT_EQ(testing_ddp::failure_of(
                  2, backend,
                  [&](ProcessGroup world) {
                    const auto net = new_net();
                    OverRanks<CheckpointedNetImpl> model(
                        net,
                        [] { return std::make_shared<CheckpointedNetImpl>(); },
                        slices(1), DataParallelOptions().process_group(world));
                    torch::optim::SGD own(net->parameters(), 0.1);
                    for (int64_t step = 0; step < 3; ++step) {
                      const int64_t first = 8 * step + 4 * world.rank();
                      model->train_step(inputs(first, 4), targets(first, 4),
                                        loss_of, own);
                    }
                    check_same(copies(net->parameters()),
                               copies(plain->parameters()), 1e-5);
                  }),
              "");
  }
}

}  // namespace
}  // namespace lockstep::checkpointing_test
