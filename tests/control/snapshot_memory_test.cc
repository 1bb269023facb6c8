#include "lockstep/control/snapshot_memory.h"

#include <algorithm>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/control/control_block.h"

namespace lockstep::control {
namespace {

constexpr size_t kBytes = 1000;

// A block of two workers, with an agent that takes what they offer.
struct Node {
  Node() {
    agent = std::jthread([this](const std::stop_token& stop) {
      SnapshotHolder holder(block);
      while (!stop.stop_requested()) {
        holder.look();
        std::this_thread::yield();
      }
    });
    memory[0] = SnapshotMemory::make(worker(0), kBytes);
    memory[1] = SnapshotMemory::make(worker(1), kBytes);
  }
  ControlBlock worker(int rank) const {
    return ControlBlock::open(block.variable(rank));
  }
  // Worker `rank` writes its half.
  void fill(int rank, char letter) {
    const auto slot = memory[rank]->begin();
    std::fill_n(slot.begin() + rank * kBytes / 2, kBytes / 2,
                static_cast<std::byte>(letter));
  }
  void save(char letter, uint64_t stamp) {
    for (const int rank : {0, 1}) {
      fill(rank, letter);
      memory[rank]->end(stamp);
    }
  }
  // "stamp first last" of the newest.
  std::string newest() const {
    const auto saved = memory[0]->complete();
    if (saved.empty()) return "none";
    return std::to_string(saved[0].stamp) + " " +
           static_cast<char>(saved[0].bytes[0]) +
           static_cast<char>(saved[0].bytes[kBytes - 1]);
  }

  ControlBlock block = ControlBlock::create(2);
  std::optional<SnapshotMemory> memory[2];
  std::jthread agent;
};

TEST(SnapshotMemory, HasTheNewestThatAllHaveFilled) {
  Node node;
  EXPECT_EQ(node.newest(), "none");
  node.save('a', 1);
  EXPECT_EQ(node.newest(), "1 aa");
  node.save('b', 2);
  node.save('c', 3);
  EXPECT_EQ(node.newest(), "3 cc");
}

TEST(SnapshotMemory, KeepsTheFormerWhenAWorkerIsKilledAmidTheNext) {
  for (const int killed : {0, 1}) {
    Node node;
    node.save('a', 1);
    node.save('b', 2);
    node.fill(killed, 'c');
    EXPECT_EQ(node.newest(), "2 bb");
    node.fill(1 - killed, 'c');
    node.memory[1 - killed]->end(3);
    EXPECT_EQ(node.newest(), "2 bb");
    // The step is repeated.
    node.save('c', 3);
    EXPECT_EQ(node.newest(), "3 cc");
  }
}

TEST(SnapshotMemory, FillsTheSlotThatWasDiscarded) {
  Node node;
  node.save('a', 1);
  node.save('b', 2);
  EXPECT_EQ(node.memory[0]->complete().size(), 2);
  node.memory[0]->discard(node.memory[0]->complete()[0]);
  EXPECT_EQ(node.newest(), "1 aa");
  node.fill(0, 'c');
  node.memory[0]->end(2);
  EXPECT_EQ(node.newest(), "1 aa");
  node.fill(1, 'c');
  node.memory[1]->end(2);
  EXPECT_EQ(node.newest(), "2 cc");
  EXPECT_EQ(node.memory[0]->complete().size(), 2);
}

TEST(SnapshotMemory, OutlivesTheWorkersThatMadeIt) {
  Node node;
  node.save('a', 1);
  node.memory[0].reset();
  node.memory[1].reset();
  node.memory[0] = SnapshotMemory::find(node.worker(0));
  ASSERT_TRUE(node.memory[0]);
  EXPECT_EQ(node.newest(), "1 aa");
}

TEST(SnapshotMemory, IsNotThereBeforeSomebodyMadeIt) {
  EXPECT_FALSE(SnapshotMemory::find(ControlBlock::create(1)));
}

TEST(ControlBlock, IsOpenedByWhatItsAgentSays) {
  const ControlBlock block = ControlBlock::create(3);
  block.slot(2).assignment.rank = 7;
  const ControlBlock opened = ControlBlock::open(block.variable(2));
  EXPECT_EQ(opened.own_slot(), 2);
  EXPECT_EQ(opened.workers(), 3);
  EXPECT_EQ(opened.slot(2).assignment.rank, 7);
}

TEST(ControlBlock, RefusesWhatLeadsToNone) {
  const ControlBlock block = ControlBlock::create(1);
  std::string far = block.variable(0);
  far.back() = '1';
  for (const std::string& text :
       {std::string(), std::string("1:2"), std::string("a:b:c:d:e"), far}) {
    EXPECT_THROW(ControlBlock::open(text), CommError) << text;
  }
  const auto other = shm::Segment::create(4096)->address();
  EXPECT_THROW(ControlBlock::open(std::to_string(other.pid) + ":" +
                                  std::to_string(other.fd) + ":" +
                                  std::to_string(other.inode) + ":4096:0"),
               CommError);
}

}  // namespace
}  // namespace lockstep::control
