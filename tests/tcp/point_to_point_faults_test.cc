#include <algorithm>
#include <csignal>
#include <ctime>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/tcp/point_to_point.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::point_to_point_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;
constexpr size_t kHuge = 64 << 20;  // more than sockets hold

TEST(TcpPointToPoint, NamesARankThatIsKilledAmidALargeMessage) {
  TwoRanks two([](P2pRank& self) {
    Message data(kHuge);
    for (;;) self.receive(0, 3, data).get();
  });
  const Message data(kHuge);
  two.self.send(1, 3, data).get();
  auto sent = two.self.send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  // It may have been sent just before.
  if (const auto error = sent.error(); error != "no error") {
    expect_parts(error, {"rank 1 (host a) ended", "rank 0's send to rank 1"});
  }
  expect_parts(two.self.send(1, 3, data).error(), {"rank 1 (host a) ended"});
}

// The caller may use its memory again, and other operations go on.
TEST(TcpPointToPoint, TimesOutWithARankThatStopsAmidALargeMessage) {
  TwoRanks two([](P2pRank& self) {
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
  two.self.receive(1, 6, {}).get();
  const Message first(kHuge);
  Message second = noise(kHuge, 1);
  auto sent = two.self.send(1, 3, first);
  two.self.timeout = milliseconds(1500);
  auto attempt = two.self.send(1, 3, second);
  sent.get();
  int status = 0;
  ASSERT_EQ(::waitpid(two.pid(), &status, WUNTRACED), two.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  const auto begin = Clock::now();
  expect_parts(attempt.error(), {"rank 0's send to rank 1", "in time"});
  EXPECT_LT(Clock::now() - begin, milliseconds(2500));
  second = Message();
  two.self.timeout = std::chrono::seconds(60);
  const Message small = noise(kSmall, 4);
  two.self.send(1, 4, small).get();
  ::kill(two.pid(), SIGCONT);
  Message got(kSmall);
  two.self.receive(1, 5, got).get();
  EXPECT_EQ(got, small);
  EXPECT_EQ(two.process().wait(), "");
}

TEST(TcpPointToPoint, SleepsWhileItWaits) {
  const auto cpu_ms = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<int64_t>(used.tv_sec) * 1000 + used.tv_nsec / 1'000'000;
  };
  const auto messages = run_p2p(Kind::kThreads, 2, [&](P2pRank& self) {
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
  const auto messages = run_p2p(Kind::kThreads, 2, [&](P2pRank& self) {
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
  const auto messages = run_p2p(Kind::kThreads, 2, [](P2pRank& self) {
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

class TcpRanksThatLeave : public testing::TestWithParam<Kind> {};

TEST_P(TcpRanksThatLeave, EndTheirLargeSends) {
  const auto messages = run_p2p(GetParam(), 2, [](P2pRank& self) {
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

INSTANTIATE_TEST_SUITE_P(Ranks, TcpRanksThatLeave,
                         testing::Values(Kind::kThreads, Kind::kProcesses),
                         shm::InstanceName());

}  // namespace
}  // namespace lockstep::tcp::point_to_point_faults_test
