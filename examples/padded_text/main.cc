// Texts of very different lengths, padded to one length. The loss is the mean
// over the targets that count, on all devices together:
//
//     padded_text plain        LibTorch on the whole batch
//     padded_text dp 4         four devices of this process
//     padded_text ddp 4        four ranks that are threads
//     padded_text dp 1 4       one device that computes four shards in turn
//     lockstep run --nproc-per-node 2 -- padded_text ddp 0 2
//                              two ranks that are processes, two shards each
#include <cstdio>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "../arguments.h"
#include "lockstep/lm.h"
#include "lockstep/lockstep.h"
using namespace lockstep;
using torch::Tensor;

constexpr int64_t kPlaces = 48;     // places in a row
constexpr int64_t kPadding = -100;  // a target that does not count
constexpr int kSteps = 10;

struct Batch {
  Tensor ids, targets;  // (texts, places)
};

// Each character is predicted from those before it, so a text of one character
// has no target.
Batch make_batch() {
  const std::string story =
      "the cat sat on the mat, and the dog sat on the cat and the mat. ";
  // In the third of four shards, no target counts.
  const std::vector<int64_t> lengths{48, 2, 1, 3, 30, 2, 5, 1,
                                     1,  1, 1, 1, 2,  3, 1, 12};
  const auto rows = static_cast<int64_t>(lengths.size());
  Batch batch{torch::zeros({rows, kPlaces}, torch::kLong),
              torch::full({rows, kPlaces}, kPadding, torch::kLong)};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t length = lengths[row];
    for (int64_t i = 0; i < length; ++i) {
      const int64_t letter = story[row + i];
      batch.ids[row][i] = letter;
      if (i > 0) batch.targets[row][i - 1] = letter;
    }
  }
  return batch;
}

// Returns the mean loss of a shard, and how many of its targets count.
WeightedLoss loss_of(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(
      logits.flatten(0, 1), targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kPadding));
}

void print_step(int step, double loss) {
  if (step == 1 || step == kSteps) {
    std::printf("step %2d: loss %.9f\n", step, loss);
  }
}

template <class Model>
void make_steps(const Model& model, const ProcessGroup& world,
                const Batch& batch) {
  torch::optim::SGD sgd(model->parameters(), 0.5);
  const int64_t rows = batch.ids.size(0) / world.size();
  const Tensor ids = batch.ids.narrow(0, world.rank() * rows, rows);
  const Tensor targets = batch.targets.narrow(0, world.rank() * rows, rows);
  for (int step = 1; step <= kSteps; ++step) {
    const double loss = model->train_step(ids, targets, loss_of, sgd).loss;
    if (world.rank() == 0) print_step(step, loss);
  }
}

void train_plain(models::LanguageModel& net, const Batch& batch) {
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 1; step <= kSteps; ++step) {
    sgd.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(
        net.forward(batch.ids).flatten(0, 1), batch.targets.flatten());
    loss.backward();
    sgd.step();
    print_step(step, loss.item<double>());
  }
}

int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "STRATEGY COUNT ACCUMULATE");
  const std::string strategy = arguments.text("dp");
  const auto count =
      static_cast<int>(arguments.number(1, strategy == "ddp" ? 0 : 1));
  const int64_t accumulate = arguments.number(1);
  const Batch batch = make_batch();
  auto spec = models::language_spec("gpt-nano");
  spec.vocabulary = 128;
  spec.context = kPlaces;
  torch::manual_seed(0);
  const auto first = models::make_language_model(spec);
  const auto copy = [&] {
    return std::dynamic_pointer_cast<models::LanguageModel>(first->clone());
  };
  const auto finish = [&](const models::LanguageModel& net, int64_t shards) {
    std::printf("%ld of %ld targets count, shards: %ld\nparameter_sha256 %s\n",
                batch.targets.ne(kPadding).sum().item<int64_t>(),
                batch.targets.numel(), shards, parameter_digest(net).c_str());
  };
  const auto train_rank = [&](const ProcessGroup& world) {
    const int64_t shards = world.size() * accumulate;
    const auto net = copy();
    make_steps(
        DistributedDataParallel(
            net, world,
            DistributedDataParallelOptions().shards(shards).intra_op_threads(
                1)),
        world, batch);
    if (world.rank() == 0) finish(*net, shards);
  };
  if (strategy == "plain") {
    train_plain(*first, batch);
    finish(*first, 1);
  } else if (strategy == "dp") {
    const int64_t shards = count * accumulate;
    const auto net = copy();
    make_steps(
        DataParallel(net,
                     devices(std::to_string(count) + "xcpu",
                             Duplicates::kRefuse, Oversubscription::kAllow),
                     DataParallelOptions().shards(shards).intra_op_threads(1)),
        ProcessGroup(), batch);
    finish(*net, shards);
  } else if (strategy != "ddp") {
    arguments.fail("expected plain, dp or ddp, got '" + strategy + "'");
  } else if (count > 0) {
    spawn(count, train_rank);
  } else {
    train_rank(init());
  }
} catch (const std::exception& error) {
  return end_with(error);
}
