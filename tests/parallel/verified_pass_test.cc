// Steps that compute their gradients twice.
#include <algorithm>
#include <atomic>
#include <functional>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/group/parallel_apply.h"
#include "tests/parallel/nets.h"

namespace lockstep {
namespace {

using testing_nets::bytes_of;
using testing_nets::cross_entropy;
using testing_nets::Net;
using testing_nets::slices;
using torch::Tensor;

struct Case {
  int devices = 2;
  int64_t shards = 4;
  int64_t batch = 13;
  Buffers buffers = Buffers::kFirstShard;
  double clip = 0;
};

/// A loss whose gradient has another bit in the computations of `shard` that
/// are among `wrong`, counted from 0.
class WrongLoss {
 public:
  WrongLoss(int64_t shard, std::vector<int> wrong)
      : shard_(shard), wrong_(std::move(wrong)) {}
  Tensor operator()(const Tensor& scores, const Tensor& target) {
    if (current_shard() == shard_ && is_wrong(computed_++)) {
      scores.register_hook([times = computed_.load()](const Tensor& gradient) {
        Tensor changed = gradient.clone();
        auto* bytes = static_cast<unsigned char*>(changed.mutable_data_ptr());
        bytes[2] ^= static_cast<unsigned char>(times);
        return changed;
      });
    }
    return cross_entropy(scores, target);
  }

 private:
  bool is_wrong(int computation) const {
    return std::find(wrong_.begin(), wrong_.end(), computation) != wrong_.end();
  }

  int64_t shard_;
  std::vector<int> wrong_;
  std::atomic<int> computed_{0};
};

using Loss = std::function<Tensor(const Tensor&, const Tensor&)>;

struct Trained {
  std::string bytes;
  std::vector<double> losses;
  std::vector<std::vector<int64_t>> repaired;  // by step
};

/// Three steps of a net with BatchNorm and dropout; `loss` is of the second.
Trained train(const Case& of, bool verifies, const Loss& loss) {
  torch::manual_seed(1);
  Net net;
  const DataParallel model(net, slices(of.devices),
                           DataParallelOptions()
                               .shards(of.shards)
                               .seed(2)
                               .buffers(of.buffers)
                               .verify(Verify::kFirst));
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    const Tensor x = torch::randn({of.batch, 3, 6, 6});
    const Tensor y = torch::randint(4, {of.batch});
    const auto result = model->train_step(
        x, y, step == 1 && loss ? loss : Loss(cross_entropy), optimizer,
        TrainStepOptions().clip_grad_norm(of.clip).verify_gradients(verifies));
    trained.losses.push_back(result.loss);
    trained.repaired.push_back(result.repaired_shards);
  }
  trained.bytes = bytes_of(*net);
  return trained;
}

using Repaired = std::vector<std::vector<int64_t>>;

TEST(VerifiedPass, HasTheBitsOfAStepThatComputesOnce) {
  for (const int devices : {1, 2, 3}) {
    for (const Buffers buffers : {Buffers::kFirstShard, Buffers::kMean}) {
      for (const double clip : {0.0, 0.5}) {
        const Case of{.devices = devices, .buffers = buffers, .clip = clip};
        const Trained once = train(of, false, {});
        const Trained twice = train(of, true, {});
        EXPECT_EQ(twice.bytes, once.bytes) << devices << " devices";
        EXPECT_EQ(twice.losses, once.losses);
        EXPECT_EQ(twice.repaired, Repaired(3));
      }
    }
  }
}

TEST(VerifiedPass, RepairsAShardWhicheverOfItsComputationsIsWrong) {
  const Case of;
  const Trained quiet = train(of, false, {});
  for (int64_t shard = 0; shard < of.shards; ++shard) {
    for (const int wrong : {0, 1}) {
      WrongLoss loss(shard, {wrong});
      const Trained repaired = train(of, true, std::ref(loss));
      EXPECT_EQ(repaired.bytes, quiet.bytes) << "shard " << shard;
      EXPECT_EQ(repaired.losses, quiet.losses);
      EXPECT_EQ(repaired.repaired, (Repaired{{}, {shard}, {}}));
    }
    // Else the test could not fail.
    WrongLoss loss(shard, {0});
    EXPECT_NE(train(of, false, std::ref(loss)).bytes, quiet.bytes);
  }
}

TEST(VerifiedPass, RefusesWhatIsDifferentEachTime) {
  WrongLoss loss(1, {0, 1, 2});
  try {
    train({}, true, std::ref(loss));
    FAIL() << "it trained";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gave three results"),
              std::string::npos)
        << error.what();
  }
}

// A forward writes to copies of its inputs, so the second computation starts
// from the same values as the first.
TEST(VerifiedPass, GivesAForwardThatWritesToItsInputsTheSameAgain) {
  const Loss loss = [](const Tensor& output, Tensor target) {
    target.add_(1).remainder_(4);
    return cross_entropy(output, target);
  };
  EXPECT_EQ(train({}, true, loss).bytes, train({}, false, loss).bytes);
}

}  // namespace
}  // namespace lockstep
