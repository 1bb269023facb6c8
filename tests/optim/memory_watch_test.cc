#include "lockstep/optim/memory_watch.h"

#include <bit>
#include <functional>

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"
#include "tests/optim/cut_optimizer.h"

namespace lockstep::optim {
namespace {

TEST(MemoryWatch, FindsABlockThatChangedAfterItWasSealed) {
  MemoryWatch watch;
  EXPECT_FALSE(watch.is_on());
  watch.start(MemoryWatch::kTurns);
  size_t found = 0;
  // The memory of each block changes between two steps.
  for (uint64_t step = 0; step < MemoryWatch::kTurns; ++step) {
    watch.begin_step();
    for (size_t block = 0; block < MemoryWatch::kTurns; ++block) {
      found += !watch.unseal(
          block, [&] { return MemoryWatch::Print{.sum = 2 * step}; });
      watch.seal(block,
                 [&] { return MemoryWatch::Print{.sum = 2 * step + 1}; });
    }
  }
  // At least one block in each step but the first.
  EXPECT_GE(found, MemoryWatch::kTurns - 1);
}

/// SGD with momentum of one block of 64 elements, all of which is sealed.
class WatchedSgd {
 public:
  /// Returns the parameter whose memory changed since the last step.
  std::optional<size_t> step() {
    sgd_->check_memory(this, /*all=*/true);
    sgd_->begin_step({true});
    sgd_->update(0, torch::ones({64}));
    return sgd_->changed_parameter();
  }
  /// Changes the momentum in a way that leaves no trace.
  void change(const std::function<void(uint32_t*)>& write) {
    sgd_->for_each_state(
        [&](const std::string&, size_t, const torch::Tensor& state) {
          write(static_cast<uint32_t*>(state.data_ptr()));
        });
  }

 private:
  CutOptimizer<torch::optim::SGD> sgd_{
      {torch::zeros({64})}, torch::optim::SGDOptions(0.1).momentum(0.9)};
};

TEST(MemoryWatch, IsDoneWithAChangeAfterTheStep) {
  WatchedSgd sgd;
  sgd.step();
  // Not one of the elements that show a write of the program.
  sgd.change([](uint32_t* state) { state[1] = std::bit_cast<uint32_t>(5.0F); });
  EXPECT_EQ(sgd.step(), 0);
  EXPECT_EQ(sgd.step(), std::nullopt);
}

// A bit of an element of the sample is found as well. A write is not reported.
TEST(MemoryWatch, TellsAFlippedBitFromAWrite) {
  WatchedSgd sgd;
  sgd.step();
  for (const size_t element : {0, 1, 9, 62, 63}) {
    for (const int bit : {0, 22, 31}) {
      sgd.change(
          [&](uint32_t* state) { state[element] ^= uint32_t{1} << bit; });
      EXPECT_EQ(sgd.step(), 0) << element << " " << bit;
      EXPECT_EQ(sgd.step(), std::nullopt);
    }
  }
  sgd.change([](uint32_t* state) {
    for (int i = 0; i < 64; ++i) {
      state[i] = std::bit_cast<uint32_t>(static_cast<float>(i));
    }
  });
  EXPECT_EQ(sgd.step(), std::nullopt);
}

TEST(MemoryWatch, SealsEachBlockInItsTurn) {
  MemoryWatch watch;
  watch.start(100);
  std::vector<bool> was_sealed(100);
  for (size_t step = 0; step < 2 * MemoryWatch::kTurns; ++step) {
    watch.begin_step();
    for (size_t block = 0; block < was_sealed.size(); ++block) {
      watch.seal(block, [&] {
        was_sealed[block] = true;
        return MemoryWatch::Print();
      });
    }
  }
  for (const bool sealed : was_sealed) EXPECT_TRUE(sealed);
}

TEST(MemoryWatch, AllowsWhatTheProgramWrites) {
  MemoryWatch watch;
  watch.start(1);
  for (size_t step = 0; step < MemoryWatch::kTurns; ++step) {
    watch.begin_step();
    watch.seal(0, [] { return MemoryWatch::Print{.sum = 1}; });
    watch.forget(0);
    EXPECT_TRUE(watch.unseal(0, [] { return MemoryWatch::Print{.sum = 2}; }));
    // Most elements have changed.
    watch.seal(0, [] { return MemoryWatch::Print{.sum = 1, .sample = {{1}}}; });
    EXPECT_TRUE(watch.unseal(
        0, [] { return MemoryWatch::Print{.sum = 2, .sample = {{2}}}; }));
  }
}

/// Makes steps until the optimizer finds a change. `change` is called before
/// each step. Returns whether it was found.
bool is_found(const std::function<void(torch::Tensor& parameter,
                                       BlockOptimizer& optimizer)>& change) {
  torch::Tensor parameter = torch::ones({50000}).set_requires_grad(true);
  CutOptimizer<torch::optim::SGD> optimizer(
      {parameter}, torch::optim::SGDOptions(0.1).momentum(0.9));
  const torch::Tensor gradient = torch::ones({50000});
  const int owner = 0;
  const torch::NoGradGuard no_grad;
  for (size_t step = 0; step < 2 * MemoryWatch::kTurns; ++step) {
    if (step > 0) change(parameter, *optimizer);
    optimizer->check_memory(&owner);
    optimizer->begin_step({true});
    for (size_t b = 0; b < optimizer->blocks().size(); ++b) {
      const Block& block = optimizer->blocks()[b];
      optimizer->update(static_cast<int64_t>(b),
                        gradient.narrow(0, block.offset, block.length));
    }
    if (optimizer->changed_parameter()) return true;
  }
  return false;
}

void flip_each_block(const torch::Tensor& tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (size_t at = 0; at < tensor.nbytes(); at += 4096) bytes[at + 4] ^= 1U;
}

TEST(OptimizerMemory, IsFoundChanged) {
  EXPECT_TRUE(is_found([](torch::Tensor& parameter, BlockOptimizer&) {
    auto* words = static_cast<uint32_t*>(parameter.mutable_data_ptr());
    for (int64_t at = 0; at < parameter.numel(); at += kBlockElements) {
      words[at + 77] ^= 1U << 21;
    }
  }));
  EXPECT_TRUE(is_found([](torch::Tensor&, BlockOptimizer& optimizer) {
    optimizer.for_each_state(
        [](const std::string&, size_t, const torch::Tensor& state) {
          flip_each_block(state);
        });
  }));
}

TEST(OptimizerMemory, MayChangeWithATrace) {
  EXPECT_FALSE(is_found([](torch::Tensor&, BlockOptimizer&) {}));
  EXPECT_FALSE(is_found([](torch::Tensor& parameter, BlockOptimizer&) {
    parameter.clamp_(-1, 1);
  }));
  EXPECT_FALSE(is_found([](torch::Tensor& parameter, BlockOptimizer&) {
    parameter.set_data(parameter.detach() * 0.5);
  }));
  // A few elements, or all of them, without a version.
  EXPECT_FALSE(is_found([](torch::Tensor& parameter, BlockOptimizer&) {
    parameter.data().narrow(0, 16000, 1000).mul_(0.5);
  }));
  EXPECT_FALSE(is_found([](torch::Tensor& parameter, BlockOptimizer&) {
    parameter.data().mul_(2);
  }));
  EXPECT_FALSE(is_found([](torch::Tensor&, BlockOptimizer& optimizer) {
    optimizer.load_state_dict(optimizer.state_dict());
  }));
}

}  // namespace
}  // namespace lockstep::optim
