// Snapshots in memory of which bits change.
#include "lockstep/checkpoint/snapshot.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/random_state.h"
#include "tests/base/expect_problem.h"

namespace lockstep::snapshot_test {
namespace {

using control::ControlBlock;
using control::SnapshotHolder;
using control::SnapshotMemory;
using torch::Tensor;

/// A state with a tensor of several pieces, and one that is not dense. All
/// values differ between steps.
CheckpointContent state_of(int64_t step) {
  const auto value = static_cast<double>(step);
  return {.info = {.model = {{"name", "small"}},
                   .step = step,
                   .epoch = 0,
                   .parameter_sha256 = {},
                   .run = RunRecord{.position = {.step = step}}},
          .model = {{"weight", torch::full({300, 1000}, value)},
                    {"bias", torch::full({4, 6}, value).slice(1, 0, 5)},
                    {"empty", torch::empty({0})}},
          .parameters = 2,
          .optimizer = {{"weight.momentum", torch::full({300, 1000}, -value)}},
          .random = random_state({})};
}

/// A node of two workers, with an agent that takes what they offer.
struct Node {
  Node() {
    block.header().may_wait = 1;
    agent = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        holder.look();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    for (const int rank : {0, 1}) {
      workers[rank] = ControlBlock::open(block.variable(rank));
      writers.push_back(
          std::make_unique<SnapshotWriter>(1, "run", &*workers[rank]));
    }
  }

  void save(int64_t step) { save(state_of(step)); }
  void save(const CheckpointContent& content) {
    // The first call is collective.
    const auto other =
        std::async(std::launch::async, [&] { writers[1]->save(content); });
    writers[0]->save(content);
    other.wait();
  }

  /// Returns the step of the newest snapshot that worker `rank` finds, or -1.
  /// Its content must be that of the step.
  int64_t newest(int rank = 0) const {
    const auto found = Snapshot::newest("run", &*workers[rank]);
    if (!found) return -1;
    const int64_t step = found->info().step;
    const CheckpointContent expected = state_of(step);
    NamedTensors model;
    OptimizerState optimizer;
    for (const auto& [name, tensor] : expected.model) {
      model.emplace_back(name, torch::zeros_like(tensor));
    }
    found->load(model);
    for (size_t i = 0; i < model.size(); ++i) {
      EXPECT_TRUE(model[i].second.equal(expected.model[i].second))
          << model[i].first << " of step " << step;
    }
    for (const auto& [name, tensor] : found->optimizer_state()) {
      EXPECT_TRUE(tensor.equal(expected.optimizer.at(name)))
          << name << " of step " << step;
    }
    return step;
  }

  /// Returns the bytes of the newest snapshot, which may be damaged.
  std::span<std::byte> bytes() const {
    const auto saved = SnapshotMemory::find(*workers[0])->complete().at(0);
    return {const_cast<std::byte*>(saved.bytes.data()), saved.bytes.size()};
  }

  /// Returns the first byte in the newest snapshot of a tensor with this value.
  std::byte& place_of(float value) const {
    const std::vector<float> values(100, value);
    const auto pattern = std::as_bytes(std::span(values));
    const auto all = bytes();
    const auto found =
        std::search(all.begin(), all.end(), pattern.begin(), pattern.end());
    EXPECT_NE(found, all.end());
    return *found;
  }

  ControlBlock block = ControlBlock::create(2);
  SnapshotHolder holder{block};
  std::optional<ControlBlock> workers[2];
  std::vector<std::unique_ptr<SnapshotWriter>> writers;
  std::jthread agent;
};

TEST(Snapshot, HasTheNewestState) {
  Node node;
  EXPECT_EQ(node.newest(), -1);
  for (const int64_t step : {1, 2, 3}) {
    node.save(step);
    EXPECT_EQ(node.newest(0), step);
    EXPECT_EQ(node.newest(1), step);
  }
  EXPECT_EQ(Snapshot::newest("another run", &*node.workers[0]), nullptr);
}

// A callback may make its state in a step.
TEST(Snapshot, HasStateThatAppearsLater) {
  Node node;
  node.save(1);
  for (const int64_t size : {3, 2000000}) {  // needs more memory
    CheckpointContent content = state_of(size);
    content.optimizer["callback.0.average"] =
        torch::arange(size, torch::kFloat32);
    node.save(content);
    for (const auto& worker : node.workers) {
      const auto found = Snapshot::newest("run", &*worker);
      ASSERT_NE(found, nullptr);
      const OptimizerState state = found->optimizer_state();
      ASSERT_EQ(state.size(), 2u);
      for (const auto& [name, tensor] : content.optimizer) {
        EXPECT_TRUE(state.at(name).equal(tensor)) << name << " " << size;
      }
    }
  }
}

TEST(Snapshot, IsDiscardedOnlyOfTheStepThatIsNamed) {
  Node node;
  node.save(1);
  node.save(2);
  node.writers[0]->discard(3);
  EXPECT_EQ(node.newest(), 2);
  node.writers[0]->discard(2);
  node.writers[1]->discard(2);
  EXPECT_EQ(node.newest(), 1);
  node.save(2);
  EXPECT_EQ(node.newest(), 2);
}

TEST(Snapshot, NamesATensorThatChangedAndUsesTheOneBefore) {
  Node node;
  node.save(1);
  node.save(2);
  node.place_of(-2) ^= std::byte{1};
  LogCapture log;
  // The worker with another local rank does not repeat the warning.
  EXPECT_EQ(node.newest(1), 1);
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(node.newest(0), 1);
  EXPECT_PRED2(contains, log.text(),
               "optimizer state 'weight.momentum' has changed in the snapshot "
               "of step 2 in memory since it was saved");
}

// Otherwise, a worker that is killed amid the next snapshot would leave none.
TEST(Snapshot, KeepsTheOneBeforeWhenTheNextIsTaken) {
  Node node;
  node.save(1);
  node.save(2);
  node.place_of(2) ^= std::byte{1};
  const LogCapture log;
  EXPECT_EQ(node.newest(), 1);
  // Only one worker saves.
  std::async(std::launch::async, [&] {
    node.writers[1]->save(state_of(2));
  }).wait();
  EXPECT_EQ(node.newest(), 1);
  node.writers[0]->save(state_of(2));
  EXPECT_EQ(node.newest(), 2);
}

TEST(Snapshot, IsNoneIfBothHaveChanged) {
  Node node;
  node.save(1);
  node.save(2);
  const LogCapture log;
  node.place_of(2) ^= std::byte{1};
  EXPECT_EQ(node.newest(), 1);
  node.place_of(1) ^= std::byte{1};
  EXPECT_EQ(node.newest(), -1);
  node.save(3);
  EXPECT_EQ(node.newest(), 3);
}

// newest() compares the content with that of the step.
TEST(Snapshot, IsRightWhicheverBitChanges) {
  Node node;
  node.save(1);
  node.save(2);
  const LogCapture log;
  const size_t size = node.bytes().size();
  int found = 0;
  int flips = 0;
  // All of the header, then places all over the rest.
  for (size_t at = 0; at < size; at += at < 1200 ? 17 : 60'347) {
    node.bytes()[at] ^= std::byte{1} << (at % 8);
    const int64_t step = node.newest();
    ++flips;
    found += step == 1 ? 1 : 0;
    ASSERT_GE(step, 1) << at;
    if (step == 2) node.bytes()[at] ^= std::byte{1} << (at % 8);
    if (step == 1) node.save(2);
  }
  // The others were between the parts of the snapshot.
  EXPECT_GT(found, flips / 2);
}

}  // namespace
}  // namespace lockstep::snapshot_test
