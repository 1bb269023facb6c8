// The tests that the p2p of shm/ and that of tcp/ share. They are in test_shm
// and in test_tcp.
// Tier: full. Eight ranks send each other large messages.

#include <algorithm>
#include <array>
#include <csignal>
#include <random>
#include <sys/wait.h>
#include <tuple>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/shm/p2p.h"

namespace lockstep::shm::p2p_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;
// Empty, small up to the limit, and larger.
constexpr std::array<size_t, 8> kSizes{
    0, 1, 64, kSmallLimit - 1, kSmallLimit, kSmallLimit + 1, 65'536, 1'048'579};

using Futures = std::vector<Awaited>;

void wait_for(Futures& futures) {
  for (auto& future : futures) future.get();
  futures.clear();
}

class PointToPoints : public P2pTest {};

TEST_P(PointToPoints, PassOnAlongARing) {
  on_all([](P2pRank& self) {
    const int next = self.next(), previous = self.previous();
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

TEST_P(PointToPoints, ReceiveTagsInReversedOrder) {
  on_all([](P2pRank& self) {
    const int other = self.rank() ^ 1;
    if (other >= self.ranks()) return;
    std::vector<Message> out, in;
    Futures sends;
    for (int tag = 0; tag < kTooManySmall; ++tag) {
      const size_t bytes = kSizes[static_cast<size_t>(tag) % 7];
      out.push_back(noise(bytes, static_cast<uint32_t>(tag)));
      in.emplace_back(bytes);
    }
    for (int tag = 0; tag < kTooManySmall; ++tag) {
      sends.push_back(self.send(other, tag, out[static_cast<size_t>(tag)]));
    }
    for (int tag = kTooManySmall - 1; tag >= 0; --tag) {
      self.receive(other, tag, in[static_cast<size_t>(tag)]).get();
    }
    wait_for(sends);
    require(in == out, "another message");
  });
}

TEST_P(PointToPoints, DoNotLockUpIfAllSendLargeMessagesFirst) {
  on_all([](P2pRank& self) {
    constexpr size_t kBytes = 8 << 20;
    const int next = self.next(), previous = self.previous();
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
    const int next = self.next(), previous = self.previous();
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
    const size_t bytes = 3 * kSmallLimit / 2;
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

INSTANTIATE_TEST_SUITE_P(Ranks, PointToPoints,
                         testing::Combine(testing::Values(Kind::kThreads,
                                                          Kind::kProcesses),
                                          testing::Values(2, 3, 4, 8)),
                         InstanceName());

class WrongSizes
    : public testing::TestWithParam<std::tuple<Kind, size_t, size_t>> {};

TEST_P(WrongSizes, AreTheReceiversErrorAlone) {
  const Kind kind = std::get<0>(GetParam());
  const size_t sent = std::get<1>(GetParam());
  const size_t expected = std::get<2>(GetParam());
  const auto messages = run_p2p(kind, 2, [&](P2pRank& self) {
    Message data(self.rank() == 1 ? sent : expected);
    if (self.rank() == 1) {
      self.send(0, 3, data).get();
      self.send(0, 3, data).get();
      return;
    }
    const std::string error = self.receive(1, 3, data).error();
    require(error.find("rank 1 sent " + std::to_string(sent) +
                       " bytes with tag 3, rank 0 receives " +
                       std::to_string(expected)) != std::string::npos,
            error);
    // The next message is not affected.
    data.resize(sent);
    self.receive(1, 3, data).get();
  });
  EXPECT_EQ(messages[0], "");
  EXPECT_EQ(messages[1], "");
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, WrongSizes,
    testing::Combine(testing::Values(Kind::kThreads, Kind::kProcesses),
                     testing::Values(kSmall, kLarge),
                     testing::Values(size_t{0}, size_t{32}, 2 * kLarge)));

TEST(PointToPoint, NamesAKilledRankInAReceiveWithinASecond) {
  TwoRanks two(sleep_on);
  Message data(kSmall);
  auto received = two.self.receive(1, 3, data);
  auto any = two.self.receive_any(4, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  const std::string end = name_of(1, two.pid()) + " ended";
  expect_parts(received.error(),
               {end, "rank 0's receive from rank 1 (64 bytes, tag 3)"});
  expect_parts(any.error(), {end, "rank 0's receive from any rank"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(PointToPoint, NamesAKilledRankInASendWithinASecond) {
  TwoRanks two(sleep_on);
  const Message data(kLarge);
  auto sent = two.self.send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(sent.error(),
               {name_of(1, two.pid()) + " ended",
                "rank 0's send to rank 1 (1048576 bytes, tag 3)"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(PointToPoint, NamesAKilledRankWhoseLargeMessageIsOnItsWay) {
  TwoRanks two([](P2pRank& self) {
    const Message data(kLarge);
    auto sent = self.send(0, 3, data);
    self.barrier();
    sleep_on(self);
  });
  two.self.barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Message data(kLarge);
  expect_parts(two.self.receive(1, 3, data).error(),
               {"rank 0", "rank 1 (host ", "(1048576 bytes, tag 3)"});
}

TEST(PointToPoint, ReceivesWhatAKilledRankHadSent) {
  TwoRanks two([](P2pRank& self) {
    self.send(0, 3, noise(kSmall, 1)).get();
    self.barrier();
    sleep_on(self);
  });
  two.self.barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Message data(kSmall);
  EXPECT_EQ(two.self.receive(1, 3, data).get(), 1);
  EXPECT_EQ(data, noise(kSmall, 1));
  EXPECT_NE(two.self.receive(1, 3, data).error(), "no error");
}

TEST(PointToPoint, NamesAStoppedRankAtTheTimeout) {
  TwoRanks two(sleep_on);
  ::kill(two.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(two.pid(), &status, WUNTRACED), two.pid());
  two.self.timeout = milliseconds(300);
  const auto begin = Clock::now();
  Message in(kSmall);
  const Message out(kLarge);
  auto received = two.self.receive(1, 3, in);
  auto sent = two.self.send(1, 4, out);
  const std::string state = name_of(1, two.pid()) + kStateOfStoppedRank;
  expect_parts(received.error(),
               {"rank 0's receive from rank 1", "in time", state});
  expect_parts(sent.error(), {"rank 0's send to rank 1", "in time", state});
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, milliseconds(1300));
}

class RanksThatLeave : public testing::TestWithParam<Kind> {};

TEST_P(RanksThatLeave, AreNamedAfterTheirLastMessage) {
  const auto messages = run_p2p(GetParam(), 2, [](P2pRank& self) {
    Message data(kSmall);
    if (self.rank() == 1) {
      self.send(0, 3, data).get();
      return;
    }
    auto first = self.receive(1, 3, data);
    Message more(kSmall);
    auto second = self.receive(1, 3, more);
    first.get();
    second.get();
  });
  expect_parts(messages[0], {"rank 1 (host ", "left the group",
                             "receive from rank 1 (64 bytes, tag 3)"});
}

TEST_P(RanksThatLeave, GetNothingMore) {
  const auto messages = run_p2p(GetParam(), 2, [](P2pRank& self) {
    Message data(kSmall);
    if (self.rank() == 1) return;
    const std::string first = self.receive(1, 0, data).error();
    require(first.find("left") != std::string::npos, first);
    self.send(1, 3, data).get();
  });
  expect_parts(messages[0], {"left the group", "send to rank 1"});
}

TEST_P(RanksThatLeave, SayWhyTheyFailed) {
  const auto messages = run_p2p(GetParam(), 2, [](P2pRank& self) {
    require(self.rank() == 0, "the disk is full");
    Message data(kSmall);
    self.receive(1, 3, data).get();
  });
  expect_parts(messages[0], {"rank 1 (host ", "failed: the disk is full"});
}

TEST_P(RanksThatLeave, EndAReceiveFromAnyOnlyTogether) {
  const auto messages = run_p2p(GetParam(), 3, [](P2pRank& self) {
    Message data(kSmall);
    if (self.rank() == 1) return;
    if (self.rank() == 2) {
      // It waits until rank 0 has noticed that rank 1 left.
      self.receive(0, 0, data).get();
      self.send(0, 7, data).get();
      return;
    }
    auto any = self.receive_any(7, data);
    Message other(kSmall);
    require(self.receive(1, 0, other).error() != "no error", "rank 1");
    self.send(2, 0, other).get();
    require(any.get() == 2, "source");
    self.receive_any(7, data).get();
  });
  expect_parts(messages[0],
               {"rank 1 (host ", "rank 2 (host ", "receive from any rank"});
  EXPECT_EQ(messages[2], "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, RanksThatLeave,
                         testing::Values(Kind::kThreads, Kind::kProcesses),
                         InstanceName());

TEST(PointToPoint, RefusesToSendToItselfOrToNoRank) {
  const auto p2p = connect_p2p(2)(0, Kind::kThreads);
  const P2pDone never = [](const std::exception_ptr&, int) { FAIL(); };
  Message data(kSmall);
  const auto timeout = std::chrono::seconds(1);
  for (const int rank : {-2, -1, 0, 2}) {
    EXPECT_THROW(p2p->send(rank, 0, data, timeout, never), InvalidArgument);
    EXPECT_THROW(p2p->receive(rank, 0, data, timeout, never), InvalidArgument);
  }
  const auto alone = connect_p2p(1)(0, Kind::kThreads);
  EXPECT_THROW(alone->receive_any(0, data, timeout, never), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::shm::p2p_test
