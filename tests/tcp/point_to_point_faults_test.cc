#include <algorithm>
#include <csignal>
#include <ctime>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tcp/point_to_point.h"
#include "tests/tcp/p2p_ranks.h"

namespace lockstep::tcp::point_to_point_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;
constexpr size_t kHuge = 64 << 20;  // more than sockets hold

class WrongSizes
    : public testing::TestWithParam<std::tuple<Kind, size_t, size_t>> {};

TEST_P(WrongSizes, AreTheReceiversErrorAlone) {
  const Kind kind = std::get<0>(GetParam());
  const size_t sent = std::get<1>(GetParam());
  const size_t expected = std::get<2>(GetParam());
  const auto messages = run_p2p(kind, 2, [&](TcpRank& self) {
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
    // The next message arrives.
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

TEST(TcpPointToPoint, NamesAKilledRankInAReceiveWithinASecond) {
  TwoRanks two(sleep_on);
  Message data(kSmall);
  auto received = two.self->receive(1, 3, data);
  auto any = two.self->receive_any(4, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(received.error(),
               {"rank 1 (host a) ended",
                "rank 0's receive from rank 1 (64 bytes, tag 3)"});
  expect_parts(any.error(),
               {"rank 1 (host a) ended", "rank 0's receive from any rank"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(TcpPointToPoint, NamesAKilledRankInASendWithinASecond) {
  TwoRanks two(sleep_on);
  const Message data(kLarge);
  auto sent = two.self->send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(sent.error(),
               {"rank 1 (host a) ended",
                "rank 0's send to rank 1 (1048576 bytes, tag 3)"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(TcpPointToPoint, NamesAKilledRankWhoseLargeMessageIsOnItsWay) {
  TwoRanks two([](TcpRank& self) {
    const Message data(kLarge);
    auto sent = self.send(0, 3, data);
    self.barrier();
    sleep_on(self);
  });
  two.self->barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Message data(kLarge);
  expect_parts(two.self->receive(1, 3, data).error(),
               {"rank 0", "rank 1 (host ", "(1048576 bytes, tag 3)"});
}

TEST(TcpPointToPoint, NamesARankThatIsKilledAmidALargeMessage) {
  TwoRanks two([](TcpRank& self) {
    Message data(kHuge);
    for (;;) self.receive(0, 3, data).get();
  });
  const Message data(kHuge);
  two.self->send(1, 3, data).get();
  auto sent = two.self->send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  // It may have been sent just before.
  if (const auto error = sent.error(); error != "no error") {
    expect_parts(error, {"rank 1 (host a) ended", "rank 0's send to rank 1"});
  }
  expect_parts(two.self->send(1, 3, data).error(), {"rank 1 (host a) ended"});
}

TEST(TcpPointToPoint, ReceivesWhatAKilledRankHadSent) {
  TwoRanks two([](TcpRank& self) {
    self.send(0, 3, noise(kSmall, 1)).get();
    self.barrier();
    sleep_on(self);
  });
  two.self->barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Message data(kSmall);
  EXPECT_EQ(two.self->receive(1, 3, data).get(), 1);
  EXPECT_EQ(data, noise(kSmall, 1));
  EXPECT_NE(two.self->receive(1, 3, data).error(), "no error");
}

TEST(TcpPointToPoint, NamesAStoppedRankAtTheTimeout) {
  TwoRanks two(sleep_on);
  ::kill(two.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(two.pid(), &status, WUNTRACED), two.pid());
  two.self->timeout = milliseconds(300);
  const auto begin = Clock::now();
  Message in(kSmall);
  const Message out(kLarge);
  auto received = two.self->receive(1, 3, in);
  auto sent = two.self->send(1, 4, out);
  expect_parts(received.error(),
               {"rank 0's receive from rank 1", "in time", "rank 1 (host a)"});
  expect_parts(sent.error(),
               {"rank 0's send to rank 1", "in time", "rank 1 (host a)"});
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, milliseconds(1300));
}

// The caller may use its memory again, and other operations go on.
TEST(TcpPointToPoint, TimesOutWithARankThatStopsAmidALargeMessage) {
  TwoRanks two([](TcpRank& self) {
    // It stops when the first message is complete. The second is accepted then.
    Message first(kHuge), second(kHuge), small(kSmall);
    self.p2p.receive(
        0, 3, first, self.timeout,
        [](const std::exception_ptr&, int) { ::kill(::getpid(), SIGSTOP); });
    auto received = self.receive(0, 3, second);
    self.send(0, 6, {}).get();
    const std::string error = received.error();
    require(error.find("rank 0 (host a) gave up on the message") !=
                std::string::npos,
            error);
    self.receive(0, 4, small).get();
    require(small == noise(kSmall, 4), "another message");
    self.send(0, 5, small).get();
  });
  two.self->receive(1, 6, {}).get();
  const Message first(kHuge);
  Message second = noise(kHuge, 1);
  auto sent = two.self->send(1, 3, first);
  two.self->timeout = milliseconds(1500);
  auto attempt = two.self->send(1, 3, second);
  sent.get();
  int status = 0;
  ASSERT_EQ(::waitpid(two.pid(), &status, WUNTRACED), two.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto begin = Clock::now();
  expect_parts(attempt.error(), {"rank 0's send to rank 1", "in time"});
  EXPECT_LT(Clock::now() - begin, milliseconds(2500));
  second = Message();
  two.self->timeout = std::chrono::seconds(60);
  const Message small = noise(kSmall, 4);
  two.self->send(1, 4, small).get();
  ::kill(two.pid(), SIGCONT);
  Message got(kSmall);
  two.self->receive(1, 5, got).get();
  EXPECT_EQ(got, small);
  EXPECT_EQ(two.process().wait(), "");
}

TEST(TcpPointToPoint, SleepsWhileItWaits) {
  const auto cpu_ms = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<int64_t>(used.tv_sec) * 1000 + used.tv_nsec / 1'000'000;
  };
  const auto messages = run_p2p(Kind::kThreads, 2, [&](TcpRank& self) {
    // A large message whose data can't be sent, and receives without messages.
    const Message large(kLarge);
    Message in(kSmall);
    auto sent = self.send(1 - self.rank(), 1, large);
    self.timeout = milliseconds(500);
    auto received = self.receive(1 - self.rank(), 2, in);
    const auto before = cpu_ms();
    require(received.error() != "no error", "a message");
    require(cpu_ms() - before < 100, "it does not sleep");
    self.barrier();
    Message large_in(kLarge);
    self.timeout = std::chrono::seconds(60);
    self.receive(1 - self.rank(), 1, large_in).get();
    sent.get();
  });
  EXPECT_EQ(messages, std::vector<std::string>(2));
}

class Timeouts : public testing::TestWithParam<int> {};

// Sender and receiver give up at all points of a large message. Their memory is
// not used any more then, and messages with other tags pass all the same.
TEST_P(Timeouts, LeaveTheConnectionUsable) {
  const int who = GetParam();  // the rank that gives up, or 2 for both
  const auto messages = run_p2p(Kind::kThreads, 2, [&](TcpRank& self) {
    const Message large = noise(kHuge / 16, 1), small = noise(kSmall, 2);
    const int other = 1 - self.rank();
    Message got_small(kSmall);
    int failed = 0;
    for (int round = 0; round < 20; ++round) {
      Message mine = self.rank() == 0 ? large : Message(large.size());
      const bool gives_up = who == 2 || who == self.rank();
      self.timeout = milliseconds(gives_up ? round % 8 : 60);
      const std::string error =
          (self.rank() == 0 ? self.send(1, 1, mine) : self.receive(0, 1, mine))
              .error();
      if (error != "no error") ++failed;
      require(self.rank() == 0 || error != "no error" || mine == large,
              "another large message");
      const Message before = mine;
      if (self.rank() == 0) std::fill(mine.begin(), mine.end(), std::byte{});
      self.barrier();
      self.timeout = std::chrono::seconds(60);
      self.send(other, 2, small).get();
      self.receive(other, 2, got_small).get();
      require(got_small == small, "another message");
      require(self.rank() == 0 || mine == before, "memory was used after done");
      self.barrier();
    }
    require(failed > 0, "nothing timed out");
    Message got(large.size());
    auto sent = self.send(other, 1, large);
    self.receive(other, 1, got).get();
    sent.get();
    require(got == large, "another message");
  });
  EXPECT_EQ(messages[0], "");
  EXPECT_EQ(messages[1], "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Timeouts, testing::Values(0, 1, 2));

TEST(TcpPointToPoint, WithdrawsAMessageThatTimedOut) {
  const auto messages = run_p2p(Kind::kThreads, 2, [](TcpRank& self) {
    const Message first = noise(kLarge, 1), second = noise(kLarge, 2);
    if (self.rank() == 0) {
      self.timeout = milliseconds(1);
      expect_parts(self.send(1, 1, first).error(), {"in time"});
      self.timeout = std::chrono::seconds(60);
      auto sent = self.send(1, 1, second);
      self.send(1, 2, {}).get();
      sent.get();
      return;
    }
    self.receive(0, 2, {}).get();
    Message got(kLarge);
    self.receive(0, 1, got).get();
    require(got == second, "the message that was given up");
  });
  EXPECT_EQ(messages[0], "");
  EXPECT_EQ(messages[1], "");
}

class RanksThatLeave : public testing::TestWithParam<Kind> {};

TEST_P(RanksThatLeave, AreNamedAfterTheirLastMessage) {
  const auto messages = run_p2p(GetParam(), 2, [](TcpRank& self) {
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
  const auto messages = run_p2p(GetParam(), 2, [](TcpRank& self) {
    Message data(kSmall);
    if (self.rank() == 1) return;
    const std::string first = self.receive(1, 0, data).error();
    require(first.find("left") != std::string::npos, first);
    self.send(1, 3, data).get();
  });
  expect_parts(messages[0], {"left the group", "send to rank 1"});
}

TEST_P(RanksThatLeave, SayWhyTheyFailed) {
  const auto messages = run_p2p(GetParam(), 2, [](TcpRank& self) {
    require(self.rank() == 0, "the disk is full");
    Message data(kSmall);
    self.receive(1, 3, data).get();
  });
  expect_parts(messages[0], {"rank 1 (host ", "failed: the disk is full"});
}

TEST_P(RanksThatLeave, EndAReceiveFromAnyOnlyTogether) {
  const auto messages = run_p2p(GetParam(), 3, [](TcpRank& self) {
    Message data(kSmall);
    if (self.rank() == 1) return;
    if (self.rank() == 2) {
      // It waits until rank 0 has seen rank 1 leave.
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

TEST_P(RanksThatLeave, EndTheirLargeSends) {
  const auto messages = run_p2p(GetParam(), 2, [](TcpRank& self) {
    Message data(kLarge);
    if (self.rank() == 1) {
      const auto pending = self.send(0, 3, data);
      self.send(0, 4, {}).get();
      return;
    }
    self.receive(1, 4, {}).get();
    self.receive(1, 5, {}).error();
    self.receive(1, 3, data).get();
  });
  expect_parts(messages[0], {"left the group", "(1048576 bytes, tag 3)"});
}

INSTANTIATE_TEST_SUITE_P(Ranks, RanksThatLeave,
                         testing::Values(Kind::kThreads, Kind::kProcesses),
                         [](const auto& instance) {
                           return instance.param == Kind::kThreads
                                      ? std::string("Threads")
                                      : std::string("Processes");
                         });

TEST(TcpPointToPoint, RefusesToSendToItselfOrToNoRank) {
  auto [first, second] = connected_pair();
  std::vector<Socket> sockets(2);
  sockets[1] = std::move(first);
  PointToPoint p2p(0, std::move(sockets), rank_names(2));
  const shm::P2pDone never = [](const std::exception_ptr&, int) { FAIL(); };
  Message data(kSmall);
  const auto timeout = std::chrono::seconds(1);
  for (const int rank : {-2, -1, 0, 2}) {
    EXPECT_THROW(p2p.send(rank, 0, data, timeout, never), InvalidArgument);
    EXPECT_THROW(p2p.receive(rank, 0, data, timeout, never), InvalidArgument);
  }
  PointToPoint alone(0, std::vector<Socket>(1), rank_names(1));
  EXPECT_THROW(alone.receive_any(0, data, timeout, never), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::tcp::point_to_point_faults_test
