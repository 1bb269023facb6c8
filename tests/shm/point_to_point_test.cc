#include "lockstep/shm/point_to_point.h"

#include <algorithm>
#include <array>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/shm/p2p.h"

namespace lockstep::shm {
namespace {

// Empty, inline up to its limit, and larger.
constexpr std::array<size_t, 8> kSizes{
    0,      1,        64, kInlineBytes - 1, kInlineBytes, kInlineBytes + 1,
    65'536, 1'048'579};

using Futures = std::vector<Awaited>;

void wait_for(Futures& futures) {
  for (auto& future : futures) future.get();
  futures.clear();
}

class PointToPoints : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void on_all(const P2pTask& task) {
    const auto [kind, ranks] = GetParam();
    for (const auto& message : run_p2p(kind, ranks, task)) {
      EXPECT_EQ(message, "");
    }
  }
};

TEST_P(PointToPoints, PassOnAlongARing) {
  on_all([](P2pRank& self) {
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    for (const size_t bytes : kSizes) {
      const auto seed = static_cast<uint32_t>(bytes * 10);
      const Message mine = noise(bytes, seed + static_cast<uint32_t>(next));
      Message got(bytes);
      auto sent = self.send(next, 0, mine);
      require(self.receive(previous, 0, got).get() == previous, "source");
      sent.get();
      require(got == noise(bytes, seed + static_cast<uint32_t>(self.rank())),
              std::to_string(bytes));
    }
  });
}

// All ranks know the plan: for every pair, messages with random sizes and tags,
// which are received in a different order where the tags allow it.
TEST_P(PointToPoints, CarryRandomSizesAndTagsBetweenAllPairs) {
  on_all([](P2pRank& self) {
    const int count = self.ranks() > 4 ? 10 : 30;
    struct Planned {
      int tag;
      size_t bytes;
      uint32_t seed;
    };
    const auto plan = [&](int from, int to) {
      std::mt19937 random(static_cast<uint32_t>(from * 100 + to));
      std::vector<Planned> result;
      for (int i = 0; i < count; ++i) {
        const size_t most = random() % 4 == 0 ? 1'048'576 : 9000;
        result.push_back({.tag = static_cast<int>(random() % 4),
                          .bytes = random() % (most + 1),
                          .seed = static_cast<uint32_t>(random())});
      }
      return result;
    };
    Futures futures;
    std::vector<Message> out;
    std::vector<std::pair<Message, Message>> got_and_expected;
    const auto pairs = static_cast<size_t>(count * self.ranks());
    out.reserve(pairs);
    got_and_expected.reserve(pairs);
    for (int other = 0; other < self.ranks(); ++other) {
      if (other == self.rank()) continue;
      for (const Planned& p : plan(self.rank(), other)) {
        out.push_back(noise(p.bytes, p.seed));
        futures.push_back(self.send(other, p.tag, out.back()));
      }
      auto wanted = plan(other, self.rank());
      std::stable_sort(
          wanted.begin(), wanted.end(),
          [](const Planned& a, const Planned& b) { return a.tag > b.tag; });
      for (const Planned& p : wanted) {
        got_and_expected.emplace_back(Message(p.bytes), noise(p.bytes, p.seed));
        futures.push_back(
            self.receive(other, p.tag, got_and_expected.back().first));
      }
    }
    wait_for(futures);
    for (const auto& [got, expected] : got_and_expected) {
      require(got == expected, "another message");
    }
  });
}

// More messages than the ring can hold, so those with other tags are set aside.
TEST_P(PointToPoints, ReceiveTagsInReversedOrder) {
  on_all([](P2pRank& self) {
    constexpr int kTags = 3 * kRingEntries;
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    std::vector<Message> out, in;
    Futures sends;
    for (int tag = 0; tag < kTags; ++tag) {
      const size_t bytes = kSizes[static_cast<size_t>(tag) % 7];
      out.push_back(noise(bytes, static_cast<uint32_t>(tag)));
      in.emplace_back(bytes);
    }
    for (int tag = 0; tag < kTags; ++tag) {
      sends.push_back(self.send(other, tag, out[static_cast<size_t>(tag)]));
    }
    for (int tag = kTags - 1; tag >= 0; --tag) {
      self.receive(other, tag, in[static_cast<size_t>(tag)]).get();
    }
    wait_for(sends);
    require(in == out, "another message");
  });
}

TEST_P(PointToPoints, DoNotLockUpIfAllSendLargeMessagesFirst) {
  on_all([](P2pRank& self) {
    constexpr size_t kBytes = 8 << 20;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    for (uint32_t round = 0; round < 3; ++round) {
      const Message mine = noise(kBytes, round);
      Message got(kBytes);
      auto sent = self.send(next, 5, mine);
      auto received = self.receive(previous, 5, got);
      sent.get();
      received.get();
      require(got == mine, "another message");
    }
  });
}

TEST_P(PointToPoints, KeepTheOrderOfManyThatWaitForTheirReceiver) {
  on_all([](P2pRank& self) {
    constexpr size_t kMessages = 200;
    const int next = (self.rank() + 1) % self.ranks();
    const int previous = (self.rank() + self.ranks() - 1) % self.ranks();
    std::vector<Message> out, in;
    Futures sends, receives;
    for (size_t i = 0; i < kMessages; ++i) {
      const size_t bytes = i % 10 == 0 ? 10'000 : 100;
      out.push_back(noise(bytes, static_cast<uint32_t>(i)));
      in.emplace_back(bytes);
    }
    for (const auto& message : out) {
      sends.push_back(self.send(next, 1, message));
    }
    self.barrier();
    for (auto& message : in) {
      receives.push_back(self.receive(previous, 1, message));
    }
    wait_for(receives);
    wait_for(sends);
    require(in == out, "another order");
  });
}

TEST_P(PointToPoints, ReceiveFromAnySource) {
  on_all([](P2pRank& self) {
    constexpr int kEach = 20;
    const size_t bytes = 3 * kInlineBytes / 2;
    if (self.rank() != 0) {
      const Message mine = noise(bytes, static_cast<uint32_t>(self.rank()));
      for (int i = 0; i < kEach; ++i) {
        self.send(0, 9, std::span(mine).first(i % 2 == 0 ? bytes : 64)).get();
      }
      return;
    }
    // Messages of a source are alternately large and small, so sizes show the
    // order.
    std::vector<int> counts(static_cast<size_t>(self.ranks()), 0);
    std::vector<Message> expected;
    for (int rank = 0; rank < self.ranks(); ++rank) {
      expected.push_back(noise(bytes, static_cast<uint32_t>(rank)));
    }
    for (int i = 0; i < kEach / 2 * (self.ranks() - 1); ++i) {
      Message large(bytes);
      const int source = self.receive_any(9, large).get();
      const auto index = static_cast<size_t>(source);
      require(large == expected.at(index), "another message");
      Message small(64);
      require(self.receive(source, 9, small).get() == source, "source");
      require(std::equal(small.begin(), small.end(), expected[index].begin()),
              "another message");
      ++counts[index];
    }
    for (int rank = 1; rank < self.ranks(); ++rank) {
      require(counts[static_cast<size_t>(rank)] == kEach / 2, "count");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, PointToPoints,
    testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                     testing::Values(2, 3, 4, 8)),
    [](const auto& instance) {
      return std::string(std::get<0>(instance.param) == Kind::kThreads
                             ? "Threads"
                             : "Processes") +
             std::to_string(std::get<1>(instance.param));
    });

}  // namespace
}  // namespace lockstep::shm
