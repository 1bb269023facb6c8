// Tensors that every shard gets whole: lockstep::shared().
#include "lockstep/parallel/module/shared.h"

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/script.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::shared_test {
namespace {

using c10::IValue;
using testing_nets::slices;
using torch::Tensor;

/// Scores of samples against a bank of vectors.
struct ScoresImpl : torch::nn::Cloneable<ScoresImpl> {
  ScoresImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(4, 3)); }
  Tensor forward(Tensor x, const Tensor& bank) {
    return fc(x).matmul(bank.t());
  }
  torch::nn::Linear fc{nullptr};
};

std::shared_ptr<ScoresImpl> new_net() {
  return testing_ddp::filled(std::make_shared<ScoresImpl>());
}

Tensor inputs(int64_t samples) { return testing_ddp::inputs(0, samples); }
/// As many rows as a batch of the tests has samples, or a multiple: a batch of
/// other tensors would be cut with it.
Tensor new_bank() {
  return torch::arange(16 * 3, torch::kFloat).mul(0.9).cos().view({16, 3});
}
Tensor targets(int64_t samples) {
  return torch::arange(samples * 16, torch::kFloat)
      .mul(0.21)
      .sin()
      .view({samples, 16});
}
Tensor weights() { return torch::linspace(0.5, 2, 16); }

Tensor weighted_loss(const Tensor& output, const Tensor& target,
                     const Tensor& weight) {
  return ((output - target).pow(2) * weight).mean();
}

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  return testing_ddp::gradients_of(module);
}

void expect_close(const std::vector<Tensor>& got,
                  const std::vector<Tensor>& expected) {
  EXPECT_NO_THROW(testing_ddp::check_same(got, expected, 1e-5));
}

TEST(Shared, ComesWholeToEveryDevice) {
  const Tensor bank = torch::arange(16);
  const IValue batch =
      c10::ivalue::Tuple::create({torch::arange(8), shared(bank)});
  const auto parts = scatter(batch, slices(2));
  ASSERT_EQ(parts.size(), 2u);
  for (const IValue& part : parts) {
    const auto& elements = part.toTupleRef().elements();
    EXPECT_EQ(elements[0].toTensor().size(0), 4);
    EXPECT_TRUE(elements[1].toTensor().is_same(bank));
  }
}

TEST(Shared, StandsInListsAndDictsOfTensors) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(torch::arange(8));
  list.push_back(shared(torch::arange(3)));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("x", torch::arange(8));
  dict.insert("mask", shared(torch::arange(5)));
  const auto parts =
      scatter(c10::ivalue::Tuple::create({list, dict}), slices(2));
  const auto& second = parts.at(1).toTupleRef().elements();
  EXPECT_TRUE(second[0].toTensorVector()[0].equal(torch::arange(4, 8)));
  EXPECT_TRUE(second[0].toTensorVector()[1].equal(torch::arange(3)));
  const auto mapped = second[1].to<c10::Dict<std::string, Tensor>>();
  EXPECT_TRUE(mapped.at("x").equal(torch::arange(4, 8)));
  EXPECT_TRUE(mapped.at("mask").equal(torch::arange(5)));
}

TEST(Shared, AloneGoesToAllDevices) {
  const auto parts = scatter(shared(torch::arange(3)), slices(2));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(parts[1].toTensor().equal(torch::arange(3)));
}

TEST(Shared, IsATensorForAPlainModule) {
  const auto net = new_net();
  const Tensor bank = new_bank();
  EXPECT_TRUE(net->forward(inputs(8), shared(bank))
                  .equal(net->forward(inputs(8), bank)));
}

TEST(Shared, ReachesATypedForwardWhole) {
  const auto net = new_net();
  for (const int64_t samples : {8, 5, 1}) {
    const DataParallel model(net, slices(2));
    EXPECT_TRUE(model->forward(inputs(samples), shared(new_bank()))
                    .allclose(net->forward(inputs(samples), new_bank())));
  }
}

TEST(Shared, GetsTheSumOfTheShardsGradientsInABackward) {
  const auto net = new_net();
  const Tensor plain_bank = new_bank().requires_grad_();
  // Not a leaf, so that the backward goes on behind it.
  const auto loss_of = [&](const Tensor& output) {
    return weighted_loss(output, targets(5), weights());
  };
  loss_of(net->forward(inputs(5), plain_bank * 2)).backward();
  const auto expected = gradients_of(*net);
  net->zero_grad();

  const DataParallel model(net, slices(3));
  const Tensor bank = new_bank().requires_grad_();
  loss_of(model->forward(inputs(5), shared(bank * 2))).backward();
  expect_close({bank.grad()}, {plain_bank.grad()});
  expect_close(gradients_of(*net), expected);
}

TEST(Shared, IsAnInputAndAPartOfTheTargetOfAStep) {
  const auto plain = new_net();
  const Tensor plain_bank = new_bank().requires_grad_();
  const Tensor plain_weights = weights().requires_grad_();
  weighted_loss(plain->forward(inputs(5), plain_bank), targets(5),
                plain_weights)
      .backward();

  const auto net = new_net();
  const DataParallel model(net, slices(2), DataParallelOptions().shards(4));
  const Tensor bank = new_bank().requires_grad_();
  const Tensor weight = weights().requires_grad_();
  model->train_step(
      std::make_tuple(inputs(5), shared(bank)),
      std::make_tuple(targets(5), shared(weight)),
      [](const Tensor& output, const std::tuple<Tensor, Tensor>& target) {
        return weighted_loss(output, std::get<0>(target), std::get<1>(target));
      });
  expect_close(gradients_of(*net), gradients_of(*plain));
  expect_close({bank.grad(), weight.grad()},
               {plain_bank.grad(), plain_weights.grad()});
}

TEST(Shared, CanBeTheWholeTarget) {
  const auto loss = [](const Tensor& output, const Tensor& weight) {
    return (output * weight).mean();
  };
  const auto plain = new_net();
  loss(plain->forward(inputs(8), new_bank()), weights()).backward();
  const auto net = new_net();
  const DataParallel model(net, slices(2));
  model->train_step(std::make_tuple(inputs(8), shared(new_bank())),
                    shared(weights()), loss);
  expect_close(gradients_of(*net), gradients_of(*plain));
}

TEST(Shared, ReachesTorchScript) {
  torch::jit::Module script("scores");
  script.register_parameter("w", torch::eye(4), false);
  script.define(R"(
    def forward(self, x, bank: List[Tensor]):
      return torch.matmul(torch.matmul(x, self.w), torch.cat(bank).t())
  )");
  c10::impl::GenericList list(c10::AnyType::get());
  const Tensor part = torch::randn({8, 4});
  list.push_back(shared(part));
  list.push_back(shared(part * 2));
  const DataParallel model(script, slices(2));
  EXPECT_TRUE(model->forward({inputs(6), list})
                  .toTensor()
                  .allclose(inputs(6).matmul(torch::cat({part, part * 2}).t()),
                            1e-5, 1e-6));
}

struct WriterImpl : torch::nn::Cloneable<WriterImpl> {
  WriterImpl() { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(4, 3)); }
  Tensor forward(Tensor x, Tensor queue) {
    const torch::NoGradGuard no_grad;
    const Tensor y = fc(x);
    queue.narrow(0, 0, y.size(0)).copy_(y);
    return y;
  }
  torch::nn::Linear fc{nullptr};
};

TEST(Shared, IsNotWrittenToByShardsAtOnce) {
  const auto net = std::make_shared<WriterImpl>();
  const DataParallel model(net, slices(2));
  try {
    model->forward(inputs(8), shared(torch::zeros({16, 3})));
    FAIL() << "the shards wrote over each other";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what())
                  .find("a forward wrote to input[1], which is shared by 2"),
              std::string::npos)
        << error.what();
    EXPECT_EQ(exit_code_of(error), kExitTrainingFailed);
  }
  const DataParallel alone(net, slices(1));
  const Tensor queue = torch::zeros({16, 3});
  const Tensor y = alone->forward(inputs(8), shared(queue));
  EXPECT_TRUE(queue.narrow(0, 0, 8).equal(y));
}

// Sizes.

TEST(Batches, OfDifferentSizesAreRefused) {
  const auto net = new_net();
  const DataParallel model(net, slices(2));
  // Both give two chunks.
  const auto wrong_input = [&] { model->forward(inputs(8), new_bank()); };
  EXPECT_EQ(error_code_of(wrong_input), ErrorCode::kBadBatch);
  const auto wrong_target = [&] {
    model->train_step(
        std::make_tuple(inputs(8), shared(new_bank())), targets(7),
        [](const Tensor& output, const Tensor&) { return output.mean(); });
  };
  EXPECT_EQ(error_code_of(wrong_target), ErrorCode::kBadBatch);
  try {
    wrong_input();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("expected 8, as input[0] of shape [8, 4] has"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("got 16 for input[1] of shape [16, 3]"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("lockstep::shared(t)"), std::string::npos) << text;
  }
}

ModuleSource module_of(const std::shared_ptr<ScoresImpl>& net) {
  return engine_module<ScoresImpl>(net, detail::cloner_of(net));
}

TEST(Batches, OfDifferentSizesAreRefusedInAnEvaluation) {
  Engine engine(module_of(new_net()), slices(2), DataParallelOptions());
  const auto evaluate = [&](const IValue& bank, int64_t target) {
    return engine.evaluate({inputs(8), bank}, targets(target), 8,
                           [](const IValue&, const IValue&) {});
  };
  EXPECT_EQ(error_code_of([&] { evaluate(new_bank(), 8); }),
            ErrorCode::kBadBatch);
  EXPECT_EQ(error_code_of([&] { evaluate(shared(new_bank()), 7); }),
            ErrorCode::kBadBatch);
  EXPECT_EQ(evaluate(shared(new_bank()), 8), (std::vector<int64_t>{4, 4}));
}

// Over ranks.

class SharedOnRanks : public testing_ddp::OnBackends {};

struct Part {
  Tensor x, y;
};
Part part_of(const ProcessGroup& world) {
  const int64_t samples = 8 / world.size();
  const int64_t first = world.rank() * samples;
  return {inputs(8).narrow(0, first, samples),
          targets(8).narrow(0, first, samples)};
}

std::vector<Tensor> plain_gradients() {
  const auto plain = new_net();
  weighted_loss(plain->forward(inputs(8), new_bank()), targets(8), weights())
      .backward();
  return gradients_of(*plain);
}

TEST_P(SharedOnRanks, IsWholeInAStep) {
  const auto expected = plain_gradients();
  const auto step = [&](auto& model, const ProcessGroup& world) {
    const Part part = part_of(world);
    model->train_step(
        std::make_tuple(part.x, shared(new_bank())),
        std::make_tuple(part.y, shared(weights())),
        [](const Tensor& output, const std::tuple<Tensor, Tensor>& target) {
          return weighted_loss(output, std::get<0>(target),
                               std::get<1>(target));
        });
    testing_ddp::check_same(gradients_of(*model->module()), expected, 1e-5);
  };
  run_on_ranks(2, [&](ProcessGroup world) {
    DistributedDataParallel ddp(new_net(), world);
    step(ddp, world);
    OverRanks dp(new_net(), slices(1),
                 DataParallelOptions().process_group(world));
    step(dp, world);
  });
}

TEST_P(SharedOnRanks, IsWholeInAForward) {
  const auto expected = plain_gradients();
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net();
    DistributedDataParallel model(net, world);
    const Part part = part_of(world);
    const Tensor output = model->forward(part.x, shared(new_bank()));
    weighted_loss(output, part.y, weights()).backward();
    testing_ddp::check_same(gradients_of(*net), expected, 1e-5);
    const torch::NoGradGuard no_grad;
    TORCH_CHECK(model->forward(part.x, shared(new_bank()))
                    .equal(net->forward(part.x, new_bank())));
  });
}

TEST_P(SharedOnRanks, IsNotTrainedByEachRank) {
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    DistributedDataParallel model(new_net(), world);
    const Part part = part_of(world);
    try {
      model->train_step(
          std::make_tuple(part.x, shared(new_bank().requires_grad_())), part.y,
          [](const Tensor& output, const Tensor& target) {
            return torch::mse_loss(output, target);
          });
    } catch (const std::exception& error) {
      TORCH_CHECK(exit_code_of(error) == kExitTrainingFailed, error.what());
      throw;
    }
  });
  EXPECT_PRED2(contains, failure, "[unsupported-graph]");
}

TEST_P(SharedOnRanks, AloneMayDifferInSizeFromTheBatch) {
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    DistributedDataParallel model(new_net(), world);
    const Part part = part_of(world);
    model->train_step(std::make_tuple(part.x, new_bank().narrow(0, 0, 8)),
                      part.y, [](const Tensor& output, const Tensor& target) {
                        return torch::mse_loss(output, target);
                      });
  });
  EXPECT_PRED2(contains, failure, "[bad-batch]");
  EXPECT_PRED2(contains, failure, "lockstep::shared(t)");
}

INSTANTIATE_TEST_SUITE_P(Backends, SharedOnRanks, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::shared_test
