#include <atomic>
#include <csignal>
#include <new>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/point_to_point.h"
#include "tests/shm/p2p.h"

namespace lockstep::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;

void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos)
        << "no '" << part << "' in: " << text;
  }
}

/// Rank 0 in this process, and rank 1 in another process that runs `task` after
/// both have joined, and then sleeps.
class TwoRanks {
 public:
  explicit TwoRanks(const P2pTask& task)
      : segment_(P2pSegment::make(2)),
        group_segment_(Group::make_segment(2)),
        process_([this, task] {
          Group group(group_segment_, 1, 2, std::chrono::seconds(60));
          PointToPoint p2p(segment_, 1, 2);
          P2pRank rank_1{p2p, group};
          rank_1.barrier();
          task(rank_1);
        }),
        group_(group_segment_, 0, 2, std::chrono::seconds(60)),
        p2p_(segment_, 0, 2),
        self{p2p_, group_} {
    self.barrier();
  }
  pid_t pid() const { return process_.pid(); }
  RankProcess& process() { return process_; }

 private:
  std::shared_ptr<const Segment> segment_;
  std::shared_ptr<const Segment> group_segment_;
  RankProcess process_;
  Group group_;
  PointToPoint p2p_;

 public:
  P2pRank self;
};

void sleep_on(P2pRank& /*self*/) {
  for (;;) ::pause();
}

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
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(received.error(),
               {"rank 1 (host ", "pid " + std::to_string(two.pid()), "ended",
                "rank 0's receive from rank 1 (64 bytes, tag 3)"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST(PointToPoint, NamesAKilledRankInASendWithinASecond) {
  TwoRanks two(sleep_on);
  const Message data(kLarge);
  auto sent = two.self.send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(sent.error(),
               {"rank 1 (host ", "pid " + std::to_string(two.pid()), "ended",
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
  expect_parts(received.error(),
               {"rank 0's receive from rank 1", "in time", "SIGSTOP"});
  expect_parts(sent.error(), {"rank 0's send to rank 1", "in time", "SIGSTOP"});
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, milliseconds(1300));
}

TEST(PointToPoint, NamesARankThatNeverJoined) {
  const auto segment = P2pSegment::make(2);
  PointToPoint p2p(segment, 0, 2);
  Awaited result;
  Message data(kSmall);
  p2p.receive(1, 3, data, milliseconds(100), result.done());
  expect_parts(result.error(), {"rank 1 never joined"});
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
                         [](const auto& instance) {
                           return instance.param == Kind::kThreads
                                      ? std::string("Threads")
                                      : std::string("Processes");
                         });

TEST(PointToPoint, FailsWhatIsUnderWayWhenItGoes) {
  const auto segment = P2pSegment::make(2);
  Awaited received;
  Awaited sent;
  Message in(kSmall);
  const Message out(kLarge);
  {
    PointToPoint p2p(segment, 0, 2);
    p2p.receive(1, 3, in, std::chrono::seconds(60), received.done());
    p2p.send(1, 4, out, std::chrono::seconds(60), sent.done());
  }
  expect_parts(received.error(),
               {"rank 0 left the group", "receive from rank 1"});
  expect_parts(sent.error(), {"rank 0 left the group", "send to rank 1"});
}

TEST(PointToPoint, RefusesToSendToItselfOrToNoRank) {
  PointToPoint p2p(P2pSegment::make(2), 0, 2);
  const P2pDone never = [](const std::exception_ptr&, int) { FAIL(); };
  Message data(kSmall);
  const auto timeout = std::chrono::seconds(1);
  for (const int rank : {-2, -1, 0, 2}) {
    EXPECT_THROW(p2p.send(rank, 0, data, timeout, never), InvalidArgument);
    EXPECT_THROW(p2p.receive(rank, 0, data, timeout, never), InvalidArgument);
  }
  PointToPoint alone(P2pSegment::make(1), 0, 1);
  EXPECT_THROW(alone.receive_any(0, data, timeout, never), InvalidArgument);
}

TEST(PointToPoint, RefusesASecondProcessOfARankAndAnotherWorld) {
  const auto segment = P2pSegment::make(2);
  PointToPoint p2p(segment, 0, 2);
  EXPECT_THROW(PointToPoint(segment, 0, 2), CommError);
  EXPECT_THROW(PointToPoint(segment, 0, 3), CommError);
  EXPECT_THROW(PointToPoint(Segment::create(64), 0, 2), CommError);
  EXPECT_THROW(PointToPoint(Group::make_segment(2), 0, 2), CommError);
  EXPECT_THROW(P2pSegment::make(0), CommError);
  EXPECT_THROW(P2pSegment::make(kMaxRanks + 1), CommError);
}

/// The p2p of rank 0, and rank 1's side of the shared memory to corrupt.
class Spoiled : public testing::Test {
 protected:
  std::string receive(size_t bytes) {
    Awaited result;
    Message data(bytes);
    PointToPoint(segment_, 0, 2)
        .receive(1, 3, data, milliseconds(200), result.done());
    return result.error();
  }
  /// Writes a message that no p2p would write.
  void put(const MessageHead& head) {
    P2pRankState& line = shared_.line(1);
    line.pid.store(::getpid());
    line.start_time.store(start_time_of(::getpid()));
    line.state.store(P2pRankState::State::kHere);
    RingWriter(shared_.ring(1, 0), shared_.line(0).events).put(head, {});
  }

  std::shared_ptr<const Segment> segment_ = P2pSegment::make(2);
  P2pSegment shared_{segment_, 2};
};

TEST_F(Spoiled, CountsAreRefused) {
  shared_.ring(1, 0).written.store(kRingEntries + 1);
  expect_parts(receive(kSmall), {"overwritten", "17"});
}

TEST_F(Spoiled, CountsAreRefusedByTheSenderToo) {
  shared_.ring(0, 1).read.store(5);
  Awaited result;
  const Message data(kSmall);
  PointToPoint(segment_, 0, 2)
      .send(1, 3, data, milliseconds(200), result.done());
  expect_parts(result.error(), {"overwritten"});
}

TEST_F(Spoiled, AnAddressOfAnotherProcessIsRefused) {
  put({.tag = 3, .bytes = kLarge, .address = {.pid = 1, .fd = 3}});
  expect_parts(receive(kLarge),
               {"can't take the message of rank 1", "another process's"});
}

TEST_F(Spoiled, AnAddressOfNoSegmentIsRefused) {
  put({.tag = 3,
       .bytes = kLarge,
       .address = {.pid = ::getpid(), .fd = 0, .inode = 1, .bytes = kLarge}});
  expect_parts(receive(kLarge), {"can't take the message of rank 1"});
}

TEST_F(Spoiled, ASegmentThatIsTooSmallIsRefused) {
  const auto small = Segment::create(4096);
  put({.tag = 3, .bytes = kLarge, .address = small->address()});
  expect_parts(receive(kLarge),
               {"can't take the message of rank 1", "too small"});
}

TEST_F(Spoiled, ASizeBeyondAllMemoryIsRefused) {
  put({.tag = 3, .bytes = UINT64_MAX, .address = {.pid = ::getpid()}});
  expect_parts(receive(kSmall), {"rank 1 sent 18446744073709551615 bytes"});
}

}  // namespace
}  // namespace lockstep::shm
