#include "lockstep/shm/group.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/shm/collectives.h"
#include "lockstep/shm/peer_process.h"
#include "tests/base/expect_problem.h"
#include "tests/base/refused_call.h"
#include "tests/base/temporary_folder.h"
#include "tests/shm/ranks.h"

namespace lockstep::shm {

using transport::Operation;
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLong = std::chrono::seconds(60);

void call(Group& group, Operation operation, uint64_t elements = 0) {
  group.begin({.operation = operation,
               .type = transport::short_text("float32"),
               .elements = elements},
              group.timeout());
  group.sync();
}

/// Rank 1 of two, in a process that meets rank 0 in a barrier and then sleeps.
class SleepingPeer {
 public:
  SleepingPeer()
      : segment_(Group::make_segment(2)), process_([&] {
          Group group(Segment::open(segment_->address()), 1, 2, kLong);
          call(group, Operation::kBarrier);
          for (;;) ::pause();
        }) {}
  const std::shared_ptr<const Segment>& segment() const { return segment_; }
  RankProcess& process() { return process_; }

 private:
  std::shared_ptr<const Segment> segment_;
  RankProcess process_;
};

class MismatchedCalls : public testing::TestWithParam<Kind> {};

TEST_P(MismatchedCalls, NameBothSidesOnEveryRank) {
  const auto messages = run_ranks(GetParam(), 3, [](Group& group) {
    call(group, Operation::kBarrier);
    if (group.rank() == 1) {
      call(group, Operation::kBroadcast, 7);
    } else {
      call(group, Operation::kAllReduce, 4096);
    }
  });
  for (const auto& message : messages) {
    EXPECT_TRUE(contains(message, "rank 1") &&
                contains(message, "broadcast, 7 x float32") &&
                contains(message, "all_reduce, 4096 x float32"))
        << message;
  }
}

TEST_P(MismatchedCalls, AreFoundInSizesToo) {
  const auto messages = run_ranks(GetParam(), 2, [](Group& group) {
    call(group, Operation::kAllReduce,
         4096 + static_cast<uint64_t>(group.rank()));
  });
  EXPECT_TRUE(contains(messages[0], "4096 x") && contains(messages[0], "4097"))
      << messages[0];
}

INSTANTIATE_TEST_SUITE_P(Ranks, MismatchedCalls,
                         testing::Values(Kind::kThreads, Kind::kProcesses),
                         InstanceName());

void name_a_killed_rank_within_a_second() {
  SleepingPeer peer;
  Group group(peer.segment(), 0, 2, kLong);
  call(group, Operation::kBarrier);
  const pid_t pid = peer.process().pid();
  ::kill(pid, SIGKILL);
  const auto begin = Clock::now();
  const auto message =
      error_of<CommError>([&] { call(group, Operation::kAllReduce, 12); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  expect_problem(
      message, ErrorCode::kCollectiveFailed,
      {"rank 1", "pid " + std::to_string(pid), "all_reduce, 12 x float32"});
  EXPECT_THROW(call(group, Operation::kBarrier), CommError);
}

TEST(Group, NamesAKilledRankWithinASecond) {
  name_a_killed_rank_within_a_second();
}

TEST(Group, NamesAKilledRankWithoutPidfdOpen) {
  for (const int error : {ENOSYS, EPERM}) {
    with_refused_call(SYS_pidfd_open, error,
                      name_a_killed_rank_within_a_second);
  }
}

TEST(PeerProcess, ThatIsGoneIsRefusedWithoutPidfdOpen) {
  with_refused_call(SYS_pidfd_open, ENOSYS, [] {
    const uint64_t start_time = own_start_time();
    EXPECT_FALSE(PeerProcess(::getpid(), start_time).has_ended());
    expect_problem(
        error_of<CommError>([&] { PeerProcess(::getpid(), start_time + 1); }),
        ErrorCode::kCollectiveFailed, {"another process of that number"});
  });
}

TEST(Group, NamesAStoppedRankAtTheTimeout) {
  SleepingPeer peer;
  Group group(peer.segment(), 0, 2, milliseconds(500));
  call(group, Operation::kBarrier);
  ::kill(peer.process().pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(peer.process().pid(), &status, WUNTRACED),
            peer.process().pid());
  expect_problem(error_of<CommError>([&] { call(group, Operation::kBarrier); }),
                 ErrorCode::kCollectiveFailed, {"rank 1", "SIGSTOP"});
}

TEST(Group, NamesARankThatNeverCame) {
  const auto message = error_of<CommError>(
      [] { Group group(Group::make_segment(2), 0, 2, milliseconds(200)); });
  expect_problem(message, ErrorCode::kCollectiveFailed,
                 {"rank 1", "never joined"});
}

// One of three ranks dies after it has joined and before the other ranks join.
TEST(Group, NamesARankThatDiedBeforeAllHadJoined) {
  const auto segment = Group::make_segment(3);
  RankProcess dying(
      [&] { Group group(Segment::open(segment->address()), 1, 3, kLong); });
  std::thread killer([&] {
    // It has joined when it sleeps in its first wait. A later death would do as
    // well.
    ::usleep(50'000);
    ::kill(dying.pid(), SIGKILL);
  });
  expect_problem(
      error_of<CommError>([&] { Group group(segment, 0, 3, kLong); }),
      ErrorCode::kCollectiveFailed, {"rank 1"});
  killer.join();
}

TEST(Group, NamesARankThatLeftInOrder) {
  const auto messages = run_ranks(Kind::kProcesses, 2, [](Group& group) {
    if (group.rank() == 0) call(group, Operation::kBarrier);
  });
  EXPECT_TRUE(contains(messages[0], "rank 1")) << messages[0];
}

TEST(Group, PassesARanksFailureOn) {
  const auto messages = run_ranks(Kind::kThreads, 3, [](Group& group) {
    require(group.rank() != 2, "the disk is full");
    call(group, Operation::kBarrier);
  });
  EXPECT_TRUE(contains(messages[0], "rank 2") &&
              contains(messages[0], "the disk is full"))
      << messages[0];
}

// Rank 1 has no descriptor left to watch rank 0 with. Rank 0 is alive, so
// nobody may report that it ended.
TEST(Group, DoesNotTakeTheLackOfDescriptorsForALostRank) {
  const auto segment = Group::make_segment(2);
  RankProcess starved([&] {
    const auto opened = Segment::open(segment->address());
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    try {
      Group group(opened, 1, 2, kLong);
    } catch (const OutOfResources&) {
      for (;;) ::pause();
    }
  });
  const auto message = error_of<CommError>([&] {
    Group group(segment, 0, 2, kLong);
    call(group, Operation::kBarrier);
  });
  expect_problem(message, ErrorCode::kCollectiveFailed,
                 {"rank 1", "failed while rank 0", "Too many open files"});
  EXPECT_FALSE(contains(message, "ended")) << message;
}

TEST(Group, TellsTheReasonOfOneOfSeveralThreadsThatFailAtOnce) {
  const std::string reasons[] = {std::string(300, 'a'), std::string(300, 'b')};
  for (int i = 0; i < 300; ++i) {
    std::atomic<int> ready = 0;
    const auto messages = run_ranks(Kind::kThreads, 2, [&](Group& group) {
      if (group.rank() == 0) return call(group, Operation::kBarrier);
      const auto fail = [&](const std::string& reason) {
        ++ready;
        while (ready.load() < 2) std::this_thread::yield();
        group.abort(reason);
      };
      std::thread other([&] { fail(reasons[0]); });
      fail(reasons[1]);
      other.join();
    });
    ASSERT_TRUE(contains(messages[0], reasons[0]) !=
                contains(messages[0], reasons[1]))
        << messages[0];
  }
}

// More ranks than those that check each other's words. The leader of a team and
// a member of another team don't see each other's words.
constexpr int kManyRanks = 2 * kFlatSyncRanks + 3;

TEST(Teams, AgreeOnWhatAllRanksAnnounce) {
  const auto messages = run_ranks(Kind::kThreads, kManyRanks, [](Group& group) {
    for (int round = 0; round < 20; ++round) {
      const int other = round * 7 % group.ranks();
      for (const bool is_same : {true, false}) {
        const bool is_larger = !is_same && group.rank() == other;
        group.begin({.operation = Operation::kBarrier}, group.timeout());
        group.announce(is_larger ? 9 : 5, 0.5 + group.rank());
        group.sync();
        require(group.announced().smallest == 5 &&
                    group.announced().largest == (is_same ? 5U : 9U),
                "not what all announced");
        require(group.value_of(other) == (is_same ? 5U : 9U) &&
                    group.factor_of(other) == 0.5 + other,
                "not what that rank announced");
      }
    }
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

TEST(Teams, NameBothSidesOfAMismatchOnEveryRank) {
  for (const int different : {0, 5, kFlatSyncRanks, kManyRanks - 1}) {
    const auto messages =
        run_ranks(Kind::kThreads, kManyRanks, [&](Group& group) {
          call(group, Operation::kBarrier);
          call(group, Operation::kAllReduce,
               group.rank() == different ? 7 : 4096);
        });
    for (const auto& message : messages) {
      EXPECT_TRUE(contains(message, fmt::format("rank {}", different)) &&
                  contains(message, "all_reduce, 7 x float32") &&
                  contains(message, "all_reduce, 4096 x float32"))
          << message;
    }
  }
}

TEST(Teams, PassARanksFailureOn) {
  constexpr int kFailing = kFlatSyncRanks + 4;
  const auto messages = run_ranks(Kind::kThreads, kManyRanks, [](Group& group) {
    require(group.rank() != kFailing, "the disk is full");
    call(group, Operation::kBarrier);
  });
  for (const auto& message : messages) {
    EXPECT_TRUE(contains(message, "the disk is full")) << message;
  }
}

TEST(Teams, NameARankThatLeftOnEveryRank) {
  constexpr int kLeaving = 2 * kFlatSyncRanks;
  const auto messages = run_ranks(Kind::kThreads, kManyRanks, [](Group& group) {
    if (group.rank() != kLeaving) call(group, Operation::kBarrier);
  });
  for (int rank = 0; rank < kManyRanks; ++rank) {
    const auto& message = messages[static_cast<size_t>(rank)];
    EXPECT_EQ(contains(message, fmt::format("rank {} ", kLeaving)),
              rank != kLeaving)
        << message;
  }
}

// The late rank fails as well, although all others have come before it.
TEST(Teams, NameTheLateRankAtTheTimeout) {
  constexpr int kLate = kFlatSyncRanks + 1;
  std::atomic<int> waiting = 0;
  const auto messages =
      run_ranks(Kind::kThreads, kManyRanks, [&](Group& group) {
        if (group.rank() == kLate) {
          while (waiting.load() < kManyRanks - 1) std::this_thread::yield();
          return call(group, Operation::kBarrier);
        }
        group.begin({.operation = Operation::kBarrier}, milliseconds(300));
        try {
          group.sync();
        } catch (...) {
          ++waiting;
          throw;
        }
      });
  for (const auto& message : messages) {
    EXPECT_TRUE(contains(message, fmt::format("rank {} (host", kLate)) &&
                contains(message, "timed out"))
        << message;
  }
}

TEST(Group, RefusesARootThatIsNoRank) {
  const auto messages = run_ranks(Kind::kThreads, 2, [](Group& group) {
    std::vector<std::byte> data(64);
    for (const int root : {-2, 2, 1'000'000}) {
      bool is_refused = false;
      try {
        group.begin({.operation = Operation::kBroadcast, .root = root}, kLong);
        broadcast(group, data, root);
      } catch (const InvalidArgument&) {
        is_refused = true;
      }
      require(is_refused, "an invalid root");
    }
    call(group, Operation::kBarrier);
  });
  for (const auto& message : messages) EXPECT_EQ(message, "");
}

TEST(Group, RefusesTwoProcessesOfOneRank) {
  const auto segment = Group::make_segment(2);
  const SegmentAddress address = segment->address();
  RankProcess other([&] { Group group(Segment::open(address), 1, 2, kLong); });
  std::thread rank_0([&] { EXPECT_NO_THROW(Group(segment, 0, 2, kLong)); });
  rank_0.join();
  expect_problem(
      error_of<CommError>([&] { Group group(segment, 1, 2, kLong); }),
      ErrorCode::kNoSharedMemory, {"two processes are rank 1"});
}

TEST(Group, RefusesTheSegmentOfAnotherWorld) {
  EXPECT_THROW(Group(Group::make_segment(2), 0, 3, kLong), CommError);
  EXPECT_THROW(Group(Segment::create(64), 0, 2, kLong), CommError);
  EXPECT_THROW(Group::make_segment(0), CommError);
  EXPECT_THROW(Group::make_segment(kMaxRanks + 1), CommError);
}

TEST(AllToAll, RefusesSizesThatDoNotMatch) {
  const auto messages = run_ranks(Kind::kThreads, 2, [](Group& group) {
    std::vector<std::byte> data(64);
    const std::span<std::byte> all(data);
    const std::vector<std::span<std::byte>> outputs{all.first(8), all.first(8)};
    const std::vector<std::span<const std::byte>> inputs{
        all.first(8), all.first(group.rank() == 0 ? 16 : 8)};
    group.begin({.operation = Operation::kAllToAll}, group.timeout());
    all_to_all(group, outputs, inputs);
    group.begin({.operation = Operation::kBarrier}, group.timeout());
    barrier(group);
  });
  EXPECT_TRUE(contains(messages[1], "expected 8 bytes; got 16 bytes") ||
              contains(messages[1], "expected 8 bytes, got 16 bytes"))
      << messages[1];
  EXPECT_TRUE(contains(messages[0], "rank 1")) << messages[0];
}

}  // namespace
}  // namespace lockstep::shm
