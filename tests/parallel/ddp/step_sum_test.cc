// Sums of gradients over ranks that share no memory have the bits of one
// process, however the shards are divided.
#include "lockstep/parallel/exchange/step_sum.h"

#include <cstring>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/base/chunk.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep::step_sum_test {
namespace {

using testing_ddp::failure_of;
using testing_ddp::filled;
using testing_ddp::inputs;
using torch::Tensor;

TEST(StepSum, NeedsRanksThatMakeUpTheTopOfTheTree) {
  for (const int64_t ranks : {1, 2, 3, 5, 8}) {
    for (const int64_t each : {1, 2, 4}) {
      EXPECT_TRUE(StepSum::can_sum(ranks * each, ranks)) << ranks;
    }
  }
  EXPECT_TRUE(StepSum::can_sum(4, 3));
  EXPECT_TRUE(StepSum::can_sum(8, 7));
  EXPECT_FALSE(StepSum::can_sum(3, 2));
  EXPECT_FALSE(StepSum::can_sum(6, 2));
  EXPECT_FALSE(StepSum::can_sum(8, 3));
  EXPECT_FALSE(StepSum::can_sum(8, 6));
}

/// A net with a complex parameter, with one that only some shards use, and with
/// one whose gradients are zeros of both signs.
struct OddNetImpl : torch::nn::Cloneable<OddNetImpl> {
  OddNetImpl(int64_t hidden_, at::ScalarType type_)
      : hidden(hidden_), type(type_) {
    reset();
  }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, hidden));
    second = register_module("second", torch::nn::Linear(hidden, 3));
    first->to(type);
    second->to(type);
    // The simulated devices have no complex numbers.
    const bool is_host = tested::kind().type == c10::kCPU;
    wave = register_parameter(
        "wave", torch::zeros({3}, is_host ? torch::kComplexFloat : type));
    rare = register_parameter("rare", torch::zeros({3}));
    zeros = register_parameter("zeros", torch::zeros({4}));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = second(torch::relu(first(x.to(type)))).to(torch::kFloat);
    const Tensor waves = wave * x.narrow(1, 0, 1);
    y = y + (waves.is_complex() ? torch::real(waves) : waves);
    y = y + (zeros * x * 0).sum(1, /*keepdim=*/true);
    return x[0][0].item<float>() > 0 ? y * (1 + rare) : y;
  }
  int64_t hidden;
  at::ScalarType type;
  torch::nn::Linear first{nullptr}, second{nullptr};
  Tensor wave, rare, zeros;
};

struct Case {
  int ranks;
  int64_t shards;
  int64_t samples;
  int devices = 1;  ///< of each rank
  at::ScalarType type = torch::kFloat;
  int64_t hidden = 8;
};

std::ostream& operator<<(std::ostream& out, const Case& with) {
  return out << with.shards << " shards on " << with.ranks << " ranks of "
             << with.devices << " devices, " << with.samples << " samples, "
             << with.type << ", " << with.hidden << " hidden";
}

/// The gradients of two steps without an optimizer, in each of which this rank
/// has its part of the batch.
std::vector<Tensor> gradients_over(const ProcessGroup& world, int devices,
                                   const Case& with) {
  const auto make = [&] {
    return std::make_shared<OddNetImpl>(with.hidden, with.type);
  };
  const auto net = filled(make());
  OverRanks<OddNetImpl> model(net, make, tested::devices(devices),
                              DataParallelOptions()
                                  .process_group(world)
                                  .shards(with.shards)
                                  .intra_op_threads(1)
                                  .verify(Verify::kNever));
  const SampleRange own =
      samples_of(shards_of_worker(world.rank(), world.size(), with.shards),
                 with.samples, with.shards);
  std::vector<Tensor> gradients;
  for (const int64_t step : {0, 1}) {
    net->zero_grad();
    model->train_step(
        inputs(step * with.samples + own.first, own.count()),
        testing_ddp::targets(step * with.samples + own.first, own.count()),
        testing_ddp::loss_of, TrainStepOptions().total_samples(with.samples));
    for (const Tensor& gradient : testing_ddp::gradients_of(*net)) {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

void expect_bits_of_one_process(const Case& with) {
  const auto expected = gradients_over(ProcessGroup(), 1, with);
  const auto run_rank = [&](const ProcessGroup& world) {
    const auto got = gradients_over(world, with.devices, with);
    TORCH_CHECK(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      TORCH_CHECK(got[i].defined() == expected[i].defined(), "gradient ", i);
      if (!got[i].defined()) continue;
      // Unlike torch::equal(), also compares the signs of zeros.
      TORCH_CHECK(
          std::memcmp(got[i].const_data_ptr(), expected[i].const_data_ptr(),
                      expected[i].nbytes()) == 0,
          "gradient ", i, ": got ", got[i], " expected ", expected[i]);
    }
  };
  EXPECT_EQ(failure_of(with.ranks, "tcp", run_rank), "") << with;
}

TEST(StepSum, HasTheBitsOfOneProcessForASmallBatch) {
  for (const int64_t samples : {1, 2, 3, 5, 7}) {
    expect_bits_of_one_process({.ranks = 2, .shards = 2, .samples = samples});
    expect_bits_of_one_process({.ranks = 3, .shards = 6, .samples = samples});
    expect_bits_of_one_process({.ranks = 4, .shards = 8, .samples = samples});
  }
}

TEST(StepSum, HasTheBitsOfOneProcessForAnyNumberOfShards) {
  for (const int64_t samples : {5, 24}) {
    for (const int64_t shards : {3, 4, 5, 7, 8, 9}) {
      expect_bits_of_one_process(
          {.ranks = 3, .shards = shards, .samples = samples});
    }
    for (const int64_t shards : {2, 3, 6}) {
      expect_bits_of_one_process(
          {.ranks = 2, .shards = shards, .samples = samples, .hidden = 20'000});
    }
  }
}

TEST(StepSum, HasTheBitsOfOneProcessForSeveralDevices) {
  // There are four simulated devices.
  const int most_devices = tested::kind().type == c10::kCPU ? 3 : 2;
  for (const int64_t samples : {3, 24}) {
    for (const int64_t shards : {6, 7, 8}) {
      for (int devices = 2; devices <= most_devices; ++devices) {
        expect_bits_of_one_process({.ranks = 2,
                                    .shards = shards,
                                    .samples = samples,
                                    .devices = devices});
      }
    }
  }
}

TEST(StepSum, HasTheBitsOfOneProcessForEveryType) {
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    // The weights of the second net are large enough to be summed separately.
    for (const int64_t hidden : {8, 40'000}) {
      for (const int64_t shards : {3, 4, 6}) {
        expect_bits_of_one_process({.ranks = 3,
                                    .shards = shards,
                                    .samples = 12,
                                    .type = type,
                                    .hidden = hidden});
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::step_sum_test
