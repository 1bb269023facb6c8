// Ranks that die, leave, fail, stall and disagree.
// Tier: full. Messages have more than 256 MiB.
#include <algorithm>
#include <csignal>
#include <ctime>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "tests/tcp/messages.h"

namespace lockstep::tcp::channel_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;
// More than a receiver keeps.
constexpr size_t kHuge = Channel::kMaxUnexpected + (1 << 20);

const auto kWays = testing::Values(Way::kLocal, Way::kTcp, Way::kEncrypted);

std::string name_of(int rank, pid_t pid) {
  return fmt::format("rank {} (host {}, pid {})", rank, host_name(), pid);
}

class WrongSizes
    : public testing::TestWithParam<std::tuple<Way, Kind, size_t, size_t>> {};

TEST_P(WrongSizes, AreTheReceiversErrorAlone) {
  const auto [way, kind, sent_bytes, expected_bytes] = GetParam();
  const size_t sent = sent_bytes, expected = expected_bytes;
  const auto messages = run_channels(way, kind, 2, [&](ChannelRank& self) {
    Bytes data(self.rank() == 1 ? sent : expected);
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
    testing::Combine(kWays, testing::Values(Kind::kThreads, Kind::kProcesses),
                     testing::Values(kSmall, kLarge),
                     testing::Values(size_t{0}, size_t{32}, 2 * kLarge)),
    WayName());

class LostRanks : public testing::TestWithParam<Way> {};

TEST_P(LostRanks, NamesAKilledRankInAReceiveWithinASecond) {
  TwoRanks two(GetParam(), sleep_on);
  Bytes data(kSmall);
  auto received = two.self.receive(1, 3, data);
  auto any = two.self.receive(kAnySource, 4, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  const std::string end = name_of(1, two.pid()) + " ended";
  expect_parts(received.error(),
               {end, "rank 0's receive from rank 1 (64 bytes, tag 3)"});
  expect_parts(any.error(), {end, "rank 0's receive from any rank"});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST_P(LostRanks, NamesAKilledRankInASendWithinASecond) {
  TwoRanks two(GetParam(), sleep_on);
  const Bytes data(kHuge);
  auto sent = two.self.send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  const auto begin = Clock::now();
  expect_parts(
      sent.error(),
      {name_of(1, two.pid()) + " ended",
       fmt::format("rank 0's send to rank 1 ({} bytes, tag 3)", kHuge)});
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
}

TEST_P(LostRanks, NamesAKilledRankWhoseLargeMessageIsOnItsWay) {
  TwoRanks two(GetParam(), [](ChannelRank& self) {
    const Bytes data(kHuge);
    auto sent = self.send(0, 3, data);
    self.barrier();
    sleep_on(self);
  });
  two.self.barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Bytes data(kHuge);
  expect_parts(
      two.self.receive(1, 3, data).error(),
      {"rank 0", "rank 1 (host ", fmt::format("({} bytes, tag 3)", kHuge)});
}

TEST_P(LostRanks, ReceivesWhatAKilledRankHadSent) {
  TwoRanks two(GetParam(), [](ChannelRank& self) {
    self.send(0, 3, noise(kSmall, 1)).get();
    self.barrier();
    sleep_on(self);
  });
  two.self.barrier();
  ::kill(two.pid(), SIGKILL);
  ASSERT_EQ(two.process().wait(), "signal 9");
  Bytes data(kSmall);
  EXPECT_EQ(two.self.receive(1, 3, data).get(), 1);
  EXPECT_EQ(data, noise(kSmall, 1));
  EXPECT_NE(two.self.receive(1, 3, data).error(), "no error");
}

TEST_P(LostRanks, NamesAStoppedRankAtTheTimeout) {
  TwoRanks two(GetParam(), sleep_on);
  ::kill(two.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(two.pid(), &status, WUNTRACED), two.pid());
  two.self.timeout = milliseconds(300);
  const auto begin = Clock::now();
  Bytes in(kSmall);
  const Bytes out(kLarge);
  auto received = two.self.receive(1, 3, in);
  auto sent = two.self.send(1, 4, out);
  const std::string state = name_of(1, two.pid()) + " is stopped (by SIGSTOP";
  expect_parts(received.error(),
               {"rank 0's receive from rank 1", "in time", state});
  expect_parts(sent.error(), {"rank 0's send to rank 1", "in time", state});
  EXPECT_GE(Clock::now() - begin, milliseconds(300));
  EXPECT_LT(Clock::now() - begin, milliseconds(1300));
}

INSTANTIATE_TEST_SUITE_P(Ways, LostRanks, kWays, [](const auto& instance) {
  return WayName::text_of(instance.param);
});

class RanksThatLeave : public testing::TestWithParam<std::tuple<Way, Kind>> {};

TEST_P(RanksThatLeave, AreNamedAfterTheirLastMessage) {
  const auto [way, kind] = GetParam();
  const auto messages = run_channels(way, kind, 2, [](ChannelRank& self) {
    Bytes data(kSmall);
    if (self.rank() == 1) {
      self.send(0, 3, data).get();
      return;
    }
    auto first = self.receive(1, 3, data);
    Bytes more(kSmall);
    auto second = self.receive(1, 3, more);
    first.get();
    second.get();
  });
  expect_parts(messages[0], {"rank 1 (host ", "left the group",
                             "receive from rank 1 (64 bytes, tag 3)"});
}

TEST_P(RanksThatLeave, GetNothingMore) {
  const auto [way, kind] = GetParam();
  const auto messages = run_channels(way, kind, 2, [](ChannelRank& self) {
    Bytes data(kSmall);
    if (self.rank() == 1) return;
    const std::string first = self.receive(1, 0, data).error();
    require(first.find("left") != std::string::npos, first);
    self.send(1, 3, data).get();
  });
  expect_parts(messages[0], {"left the group", "send to rank 1"});
}

TEST_P(RanksThatLeave, SayWhyTheyFailed) {
  const auto [way, kind] = GetParam();
  const auto messages = run_channels(way, kind, 2, [](ChannelRank& self) {
    require(self.rank() == 0, "the disk is full");
    Bytes data(kSmall);
    self.receive(1, 3, data).get();
  });
  expect_parts(messages[0], {"rank 1 (host ", "failed: the disk is full"});
}

TEST_P(RanksThatLeave, EndAReceiveFromAnyOnlyTogether) {
  const auto [way, kind] = GetParam();
  const auto messages = run_channels(way, kind, 3, [](ChannelRank& self) {
    Bytes data(kSmall);
    if (self.rank() == 1) return;
    if (self.rank() == 2) {
      // It waits until rank 0 has noticed that rank 1 left.
      self.receive(0, 0, data).get();
      self.send(0, 7, data).get();
      return;
    }
    auto any = self.receive(kAnySource, 7, data);
    Bytes other(kSmall);
    require(self.receive(1, 0, other).error() != "no error", "rank 1");
    self.send(2, 0, other).get();
    require(any.get() == 2, "source");
    self.receive(kAnySource, 7, data).get();
  });
  expect_parts(messages[0],
               {"rank 1 (host ", "rank 2 (host ", "receive from any rank"});
  EXPECT_EQ(messages[2], "");
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, RanksThatLeave,
    testing::Combine(kWays, testing::Values(Kind::kThreads, Kind::kProcesses)),
    WayName());

TEST(Channel, RefusesToSendToItselfOrToNoRank) {
  const ChannelTask refuses = [](ChannelRank& self) {
    const MessageDone never = [](const std::exception_ptr&, int) { FAIL(); };
    Bytes data(kSmall);
    const auto timeout = std::chrono::seconds(1);
    for (const int rank : {-2, self.rank(), self.ranks()}) {
      EXPECT_THROW(self.channel.send(rank, 0, data, timeout, never),
                   InvalidArgument);
      EXPECT_THROW(self.channel.receive(rank, 0, data, timeout, never),
                   InvalidArgument);
    }
    EXPECT_THROW(self.channel.send(kAnySource, 0, data, timeout, never),
                 InvalidArgument);
    if (self.ranks() > 1) return;
    EXPECT_THROW(self.channel.receive(kAnySource, 0, data, timeout, never),
                 InvalidArgument);
  };
  for (const int ranks : {1, 2}) {
    const auto ends = run_channels(Way::kLocal, Kind::kThreads, ranks, refuses);
    EXPECT_EQ(ends, std::vector<std::string>(static_cast<size_t>(ranks)));
  }
}

TEST(Channel, FailsWhatIsUnderWayWhenItGoes) {
  const auto ends =
      run_channels(Way::kLocal, Kind::kThreads, 2, [](ChannelRank& self) {
        if (self.rank() == 1) return self.barrier();
        Awaited received, sent;
        Bytes in(kSmall);
        const Bytes out(kHuge);
        {
          const GroupPeers peers(self.group);
          Channel channel(0, 2, local_door(LocalPlace::random(), 0, 2), peers);
          channel.receive(1, 3, in, self.timeout, received.done());
          channel.send(1, 4, out, self.timeout, sent.done());
        }
        expect_parts(received.error(),
                     {"rank 0 left the group", "receive from rank 1"});
        expect_parts(sent.error(), {"rank 0 left the group", "send to rank 1"});
        self.barrier();
      });
  EXPECT_EQ(ends, std::vector<std::string>(2));
}

class Faults : public testing::TestWithParam<Way> {};

TEST_P(Faults, NameARankThatIsKilledAmidALargeMessage) {
  TwoRanks two(GetParam(), [](ChannelRank& self) {
    Bytes data(kHuge);
    for (;;) self.receive(0, 3, data).get();
  });
  const Bytes data(kHuge);
  two.self.send(1, 3, data).get();
  auto sent = two.self.send(1, 3, data);
  ::kill(two.pid(), SIGKILL);
  // It may have been sent just before.
  if (const auto error = sent.error(); error != "no error") {
    expect_parts(error, {name_of(1, two.pid()), "rank 0's send to rank 1"});
  }
  expect_parts(two.self.send(1, 3, data).error(),
               {name_of(1, two.pid()) + " ended"});
}

TEST_P(Faults, EndAReceiveWhoseSenderIsKilledAmidItsMessage) {
  TwoRanks two(GetParam(), [](ChannelRank& self) {
    const Bytes data(kHuge);
    auto sent = self.send(0, 3, data);
    self.receive(0, 4, {}).get();
    ::kill(::getpid(), SIGKILL);
  });
  Bytes data(kHuge);
  auto received = two.self.receive(1, 3, data);
  two.self.send(1, 4, {}).get();
  if (const auto error = received.error(); error != "no error") {
    expect_parts(error,
                 {name_of(1, two.pid()) + " ended",
                  fmt::format("receive from rank 1 ({} bytes, tag 3)", kHuge)});
  }
}

// The other end would take what comes next for the rest of the message.
TEST_P(Faults, CloseTheConnectionWhenAPartOfAMessageTimesOut) {
  TwoRanks two(GetParam(), sleep_on);
  ::kill(two.pid(), SIGSTOP);
  two.self.timeout = milliseconds(300);
  const Bytes data(kHuge), small(kSmall);
  // The first opens the connection, if the other end could still do that.
  auto first = two.self.send(1, 2, small);
  auto second = two.self.send(1, 3, data);
  auto third = two.self.send(1, 4, small);
  first.error();
  expect_parts(second.error(), {"rank 0's send to rank 1", "in time"});
  EXPECT_NE(third.error(), "no error");
}

TEST_P(Faults, SleepWhileTheyWait) {
  const auto cpu_ms = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<int64_t>(used.tv_sec) * 1000 + used.tv_nsec / 1'000'000;
  };
  const auto ends =
      run_channels(GetParam(), Kind::kThreads, 2, [&](ChannelRank& self) {
        // A message that nobody can take, and receives without messages.
        const int other = 1 - self.rank();
        const Bytes huge(kHuge);
        Bytes in(kSmall), huge_in(kHuge);
        auto sent = self.send(other, 1, huge);
        // Otherwise the other rank may still fill its memory.
        self.barrier();
        self.timeout = milliseconds(500);
        // Until the first part of it is on its way.
        self.receive(other, 2, in).error();
        const auto before = cpu_ms();
        auto received = self.receive(other, 2, in);
        require(received.error() != "no error", "a message");
        require(cpu_ms() - before < 100, "it does not sleep");
        self.barrier();
        self.timeout = std::chrono::seconds(60);
        self.receive(other, 1, huge_in).get();
        sent.get();
      });
  EXPECT_EQ(ends, std::vector<std::string>(2));
}

// Receives give up at all points of a large message. Their memory is not used
// any more then, and other messages pass all the same.
TEST_P(Faults, LeaveTheMemoryOfAReceiveThatTimesOutAlone) {
  const auto ends =
      run_channels(GetParam(), Kind::kThreads, 2, [&](ChannelRank& self) {
        const Bytes large = noise(16 << 20, 1), small = noise(kSmall, 2);
        const int other = 1 - self.rank();
        for (int round = 0; round < 20; ++round) {
          if (self.rank() == 0) {
            self.send(1, 1, large).get();
          } else {
            Bytes got(large.size());
            self.timeout = milliseconds(round % 8);
            const std::string error = self.receive(0, 1, got).error();
            require(error != "no error" || got == large, "another message");
            const Bytes before = got;
            self.timeout = std::chrono::seconds(60);
            if (error != "no error" && round % 2 == 0) {
              std::this_thread::sleep_for(milliseconds(2));
              require(got == before, "memory was used after done");
            }
          }
          Bytes got_small(kSmall);
          self.send(other, 2, small).get();
          self.receive(other, 2, got_small).get();
          require(got_small == small, "another message");
        }
      });
  EXPECT_EQ(ends, std::vector<std::string>(2));
}

// The first message is larger than a receiver keeps, so those behind it wait.
TEST_P(Faults, HoldUpWhatTheReceiverCantKeep) {
  const auto ends =
      run_channels(GetParam(), Kind::kThreads, 2, [&](ChannelRank& self) {
        const size_t bytes = Channel::kMaxUnexpected / 2 + 1;
        if (self.rank() == 0) {
          const Bytes large(bytes), small = noise(kSmall, 3);
          std::vector<Awaited> sends;
          for (int tag = 0; tag < 3; ++tag) {
            sends.push_back(self.send(1, tag, large));
          }
          sends.push_back(self.send(1, 3, small));
          for (auto& each : sends) each.get();
          return self.barrier();
        }
        Bytes small(kSmall), large(bytes);
        auto last = self.receive(0, 3, small);
        self.timeout = milliseconds(300);
        require(self.receive(0, 2, large).error() != "no error",
                "it was held up");
        self.timeout = std::chrono::seconds(60);
        for (int tag = 0; tag < 2; ++tag) self.receive(0, tag, large).get();
        last.get();
        require(small == noise(kSmall, 3), "another message");
        self.receive(0, 2, large).get();
        self.barrier();
      });
  EXPECT_EQ(ends, std::vector<std::string>(2));
}

TEST_P(Faults, TellTheOtherRankOfAnAbort) {
  const auto ends =
      run_channels(GetParam(), Kind::kThreads, 2, [&](ChannelRank& self) {
        Bytes data(kSmall);
        const int other = 1 - self.rank();
        self.send(other, 1, data).get();
        self.receive(other, 1, data).get();
        auto pending = self.receive(other, 2, data);
        if (self.rank() == 1) self.channel.abort("the disk\x1b is full");
        expect_parts(pending.error(),
                     {self.rank() == 1 ? "the group failed before: the disk"
                                       : "rank 1 gave up: the disk? is full"});
        EXPECT_NE(self.send(other, 3, data).error(), "no error");
        self.barrier();
      });
  EXPECT_EQ(ends, std::vector<std::string>(2));
}

INSTANTIATE_TEST_SUITE_P(Ways, Faults, kWays, [](const auto& instance) {
  return WayName::text_of(instance.param);
});

}  // namespace
}  // namespace lockstep::tcp::channel_faults_test
