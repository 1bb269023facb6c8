// Forwards that write to parameters, as those of an Embedding with max_norm do.
#include "lockstep/parallel/module/parameter_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/engine.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::parameter_writes_test {
namespace {

using c10::IValue;
using testing_nets::slices;
using torch::Tensor;

constexpr double kMaxNorm = 0.5;

/// Embeddings, and a layer on top of their mean.
struct WordsImpl : torch::nn::Cloneable<WordsImpl> {
  explicit WordsImpl(bool has_max_norm_) : has_max_norm(has_max_norm_) {
    reset();
  }
  void reset() override {
    auto options = torch::nn::EmbeddingOptions(20, 4);
    if (has_max_norm) options.max_norm(kMaxNorm);
    words = register_module("words", torch::nn::Embedding(options));
    fc = register_module("fc", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x) { return fc(words(x).mean(1)); }

  bool has_max_norm;
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear fc{nullptr};
};

std::shared_ptr<WordsImpl> new_net(bool has_max_norm) {
  return testing_ddp::filled(std::make_shared<WordsImpl>(has_max_norm));
}

/// The way that the error names.
void renormalise(WordsImpl& net) {
  const torch::NoGradGuard no_grad;
  Tensor& weight = net.words->weight;
  weight.copy_(weight.renorm(2, 0, kMaxNorm));
}

Tensor words_of(int64_t step) {
  return torch::arange(step * 7, step * 7 + 8 * 3)
      .mul(11)
      .remainder(20)
      .view({8, 3});
}
Tensor classes_of(int64_t step) { return torch::arange(step, step + 8) % 3; }

Tensor loss_of(const Tensor& output, const Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

constexpr int64_t kSteps = 5;

std::vector<Tensor> plain_parameters() {
  const auto net = new_net(/*has_max_norm=*/true);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  for (int64_t step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    loss_of(net->forward(words_of(step)), classes_of(step)).backward();
    sgd.step();
  }
  renormalise(*net);
  return testing_ddp::copies(net->parameters());
}

template <class Act>
void expect_refused(const Act& act) {
  try {
    act();
    ADD_FAILURE() << "the write was not found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kParameterWritten);
    EXPECT_PRED2(contains, error.what(), "wrote to parameter 'words.weight'");
    EXPECT_PRED2(contains, error.what(), "renorm(2, 0, max_norm)");
  }
}

TEST(ParameterWrites, AreRefusedWhereShardsShareTheParameters) {
  for (const int devices : {1, 2}) {
    const auto net = new_net(/*has_max_norm=*/true);
    const DataParallel model(net, slices(devices),
                             DataParallelOptions().shards(2));
    expect_refused([&] { model->forward(words_of(0)); });
    torch::optim::SGD sgd(net->parameters(), 0.5);
    testing_ddp::filled(net);
    const Tensor fc = net->fc->weight.detach().clone();
    expect_refused(
        [&] { model->train_step(words_of(0), classes_of(0), loss_of, sgd); });
    EXPECT_TRUE(net->fc->weight.equal(fc));
    testing_ddp::filled(net);
    const torch::NoGradGuard no_grad;
    expect_refused([&] { model->forward(words_of(0)); });
  }
}

TEST(ParameterWrites, AreRefusedInAnEvaluation) {
  const auto net = new_net(/*has_max_norm=*/true);
  Engine engine(engine_module<WordsImpl>(net, detail::cloner_of(net)),
                slices(2), DataParallelOptions());
  expect_refused([&] {
    engine.evaluate({words_of(0)}, classes_of(0), 8,
                    [](const IValue&, const IValue&) {});
  });
}

TEST(ParameterWrites, AreAllowedWhereNothingIsShared) {
  const auto net = new_net(/*has_max_norm=*/true);
  const DataParallel model(net, slices(1));
  torch::optim::SGD sgd(net->parameters(), 0.5);
  for (int64_t step = 0; step < kSteps; ++step) {
    model->train_step(words_of(step), classes_of(step), loss_of, sgd);
  }
  renormalise(*net);
  testing_ddp::check_same(net->parameters(), plain_parameters());
}

TEST(ParameterWrites, BetweenStepsAreTheWayThatWorks) {
  const auto net = new_net(/*has_max_norm=*/false);
  const DataParallel model(net, slices(2));
  torch::optim::SGD sgd(net->parameters(), 0.5);
  renormalise(*net);
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step % 2 == 0) {
      model->train_step(words_of(step), classes_of(step), loss_of, sgd);
    } else {
      loss_of(model->forward(words_of(step)), classes_of(step)).backward();
      sgd.step();
      sgd.zero_grad();
    }
    renormalise(*net);
  }
  testing_ddp::check_same(net->parameters(), plain_parameters(), 1e-5);
}

/// Writes to what its own backward needs.
struct ShrinkingImpl : torch::nn::Cloneable<ShrinkingImpl> {
  ShrinkingImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = second(first(x));
    const torch::NoGradGuard no_grad;
    second->weight.mul_(0.5);
    return y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(ParameterWrites, AreNamedWhenABackwardFailsForThem) {
  const auto net = std::make_shared<ShrinkingImpl>();
  const DataParallel model(net, slices(2));
  try {
    model->train_step(testing_ddp::inputs(0, 8), testing_ddp::targets(0, 8),
                      loss_of);
    FAIL() << "the write was not found";
  } catch (const std::exception& error) {
    EXPECT_PRED2(contains, error.what(), "wrote to parameter 'second.weight'");
    EXPECT_PRED2(contains, error.what(), "modified by an inplace operation");
  }
}

class WritesOnRanks : public testing_ddp::OnBackends {};

Tensor part_of(const ProcessGroup& world, const Tensor& batch) {
  const int64_t samples = batch.size(0) / world.size();
  return batch.narrow(0, world.rank() * samples, samples);
}

TEST_P(WritesOnRanks, AreRefusedInAForward) {
  EXPECT_PRED2(contains,
               on_ranks(2,
                        [](ProcessGroup world) {
                          DistributedDataParallel model(
                              new_net(/*has_max_norm=*/true), world);
                          model->forward(part_of(world, words_of(0)));
                        }),
               "[parameter-written]");
}

TEST_P(WritesOnRanks, AreRefusedWithoutGradients) {
  EXPECT_PRED2(contains,
               on_ranks(2,
                        [](ProcessGroup world) {
                          DistributedDataParallel model(
                              new_net(/*has_max_norm=*/true), world);
                          const torch::NoGradGuard no_grad;
                          model->forward(part_of(world, words_of(0)));
                        }),
               "[parameter-written]");
}

TEST_P(WritesOnRanks, AreRefusedInATrainStep) {
  EXPECT_PRED2(contains,
               on_ranks(2,
                        [](ProcessGroup world) {
                          DistributedDataParallel model(
                              new_net(/*has_max_norm=*/true), world);
                          model->train_step(part_of(world, words_of(0)),
                                            part_of(world, classes_of(0)),
                                            loss_of);
                        }),
               "[parameter-written]");
}

TEST_P(WritesOnRanks, ToWhatRanksShareAreRefusedInALoop) {
  const std::string failure = on_ranks(2, [](ProcessGroup world) {
    const auto net = new_net(/*has_max_norm=*/false);
    DistributedDataParallel model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.5);
    const Tensor words = part_of(world, words_of(0));
    const Tensor classes = part_of(world, classes_of(0));
    model->train_step(words, classes, loss_of, sgd);
    if (!world.can_share_memory()) throw std::runtime_error("not shared");
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.mul_(2);
    }
    loss_of(model->forward(words), classes).backward();
  });
  EXPECT_THAT(failure, testing::AnyOf(testing::HasSubstr("[parameter-written]"),
                                      testing::HasSubstr("not shared")));
}

TEST_P(WritesOnRanks, BetweenStepsAreTheWayThatWorks) {
  const auto expected = plain_parameters();
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = new_net(/*has_max_norm=*/false);
    DistributedDataParallel model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.5);
    model->unshare_parameters();
    renormalise(*net);
    for (int64_t step = 0; step < kSteps; ++step) {
      model->train_step(part_of(world, words_of(step)),
                        part_of(world, classes_of(step)), loss_of, sgd);
      model->unshare_parameters();
      renormalise(*net);
    }
    testing_ddp::check_same(net->parameters(), expected, 1e-5);
  });
}

TEST_P(WritesOnRanks, AreAllowedOnOneRank) {
  const auto expected = plain_parameters();
  run_on_ranks(1, [&](ProcessGroup world) {
    const auto net = new_net(/*has_max_norm=*/true);
    DistributedDataParallel model(net, world);
    torch::optim::SGD sgd(net->parameters(), 0.5);
    for (int64_t step = 0; step < kSteps; ++step) {
      sgd.zero_grad();
      loss_of(model->forward(words_of(step)), classes_of(step)).backward();
      sgd.step();
    }
    renormalise(*net);
    testing_ddp::check_same(net->parameters(), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, WritesOnRanks, testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::parameter_writes_test
