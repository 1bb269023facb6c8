// Batches in which few targets count. Compares with
// torch.nn.functional.cross_entropy over the whole batch, which padded_loss.py
// computes.
// Tier: nightly. Language models.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/text.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/losses/cross_entropy.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/parallel/nets.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::padded_loss_test {
namespace {

using torch::Tensor;
using Losses = std::vector<double>;
namespace functional = torch::nn::functional;

constexpr int kSteps = 10;
constexpr int64_t kClasses = 32;
constexpr int64_t kPadding = -100;

// The losses are around 3, where float32 numbers are 2.4e-7 apart. The shards
// are rounded differently from the whole batch.
constexpr double kTolerance = 1e-6;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    table = register_module("table", torch::nn::Embedding(kClasses, 16));
    hidden = register_module("hidden", torch::nn::Linear(16, 24));
    out = register_module("out", torch::nn::Linear(24, kClasses));
  }
  Tensor forward(const Tensor& ids) {
    return out(torch::tanh(hidden(table(ids))));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

struct Batch {
  Tensor ids, targets, class_weights;  // the last may be undefined
};

/// Returns 16 rows with 40, 0, 1, 2, 0, ... targets. The third of four shards
/// has no targets.
Batch make_batch(bool has_class_weights) {
  torch::manual_seed(4);
  Batch batch{torch::randint(kClasses, {16, 40}),
              torch::randint(kClasses, {16, 40}),
              {}};
  const std::vector<int64_t> targets{40, 0, 1, 2, 0, 33, 1, 0,
                                     0,  0, 0, 0, 3, 1,  0, 17};
  for (int64_t row = 0; row < 16; ++row) {
    const int64_t count = targets[static_cast<size_t>(row)];
    batch.targets[row].slice(0, count).fill_(kPadding);
  }
  if (has_class_weights) batch.class_weights = torch::rand({kClasses}) + 0.1;
  return batch;
}

/// A way to compute a batch of 16.
struct Way {
  int ranks = 1;  // each in a thread
  std::string backend;
  bool is_ddp = false;
  int64_t shards = 1;  // per call
  int64_t calls = 1;   // that the batch is split into

  std::string text() const {
    return std::to_string(ranks) + " ranks " + backend +
           (is_ddp ? " ddp" : " dp") + ", " + std::to_string(shards) +
           " shards, " + std::to_string(calls) + " calls";
  }
};

template <class Model>
Losses train(const Model& model, const Batch& batch, const ProcessGroup& world,
             int64_t calls) {
  auto options = functional::CrossEntropyFuncOptions().ignore_index(kPadding);
  if (batch.class_weights.defined()) options.weight(batch.class_weights);
  const auto loss_of = [&](const Tensor& logits, const Tensor& targets) {
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), options);
  };
  // The weight of all calls and ranks together.
  const Tensor kept = batch.targets.masked_select(batch.targets.ne(kPadding));
  const double weight = batch.class_weights.defined()
                            ? batch.class_weights.to(torch::kDouble)
                                  .index({kept})
                                  .sum()
                                  .item<double>()
                            : static_cast<double>(kept.numel());
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  const int64_t rows = 16 / calls / world.size();
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (int64_t call = 0; call < calls; ++call) {
      const int64_t first = (call * world.size() + world.rank()) * rows;
      loss +=
          model
              ->train_step(batch.ids.narrow(0, first, rows),
                           batch.targets.narrow(0, first, rows), loss_of,
                           TrainStepOptions().total_weight(weight).empty_batch(
                               EmptyBatch::kSkip))
              .loss;
    }
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss);
  }
  return losses;
}

Losses train(const Way& way, const NamedTensors& start, const Batch& batch) {
  Losses losses;
  const auto rank_task = [&](const ProcessGroup& world) {
    const auto net = std::make_shared<Net>();
    load_state_dict(*net, start);
    Losses own;
    if (way.is_ddp) {
      own = train(DistributedDataParallel(net, world,
                                          DistributedDataParallelOptions()
                                              .shards(way.shards)
                                              .intra_op_threads(1)),
                  batch, world, way.calls);
    } else {
      own = train(OverRanks(net,
                            world.size() == 1
                                ? testing_nets::slices(way.shards > 1 ? 2 : 1)
                                : std::vector<Device>{testing_nets::slices(
                                      world.size())[world.rank()]},
                            DataParallelOptions()
                                .process_group(world)
                                .shards(way.shards)
                                .intra_op_threads(1)),
                  batch, world, way.calls);
    }
    if (world.rank() == 0) losses = own;
  };
  if (way.ranks == 1) {
    rank_task(ProcessGroup());
  } else {
    spawn(way.ranks, rank_task, ProcessGroupOptions().backend(way.backend));
  }
  return losses;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const int64_t calls : {1, 4}) {
    for (const int64_t shards : {1, 2, 4}) {
      ways.push_back({.ranks = 1, .shards = shards, .calls = calls});
    }
    for (const int ranks : {2, 4}) {
      for (const std::string backend : {"shm", "tcp"}) {
        for (const bool is_ddp : {false, true}) {
          ways.push_back({ranks, backend, is_ddp, 4, calls});
        }
      }
    }
  }
  return ways;
}

class PaddedLoss : public testing::TestWithParam<bool> {};

TEST_P(PaddedLoss, IsThatOfPyTorchOverTheWholeBatch) {
  if (!python_has("safetensors.torch")) {
    GTEST_SKIP() << "the Python package safetensors is not there";
  }
  const Batch batch = make_batch(GetParam());
  torch::manual_seed(5);
  const Net net;
  NamedTensors start;
  for (const auto& [name, tensor] : state_dict(net)) {
    start.emplace_back(name, tensor.detach().clone());
  }
  const TemporaryFolder folder;
  write_safetensors(folder.path("net.safetensors"),
                    {.tensors = start, .metadata = {}});
  NamedTensors batch_tensors{{"ids", batch.ids}, {"targets", batch.targets}};
  if (batch.class_weights.defined()) {
    batch_tensors.emplace_back("class_weights", batch.class_weights);
  }
  write_safetensors(folder.path("batch.safetensors"),
                    {.tensors = batch_tensors, .metadata = {}});
  const Losses expected = nlohmann::json::parse(last_line(run_python_file(
      LOCKSTEP_SOURCE_DIR "/tests/parity/padded_loss.py", {folder.path()})));
  ASSERT_EQ(expected.size(), size_t{kSteps});
  EXPECT_LT(expected.back(), expected.front() - 0.2) << "it learns nothing";
  for (const Way& way : all_ways()) {
    const Losses losses = train(way, start, batch);
    ASSERT_EQ(losses.size(), expected.size()) << way.text();
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(losses[step], expected[step], kTolerance)
          << way.text() << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, PaddedLoss, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "WithClassWeights" : "Plain";
                         });

}  // namespace
}  // namespace lockstep::padded_loss_test
