#include "lockstep/shm/point_to_point.h"

#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "tests/shm/p2p.h"

namespace lockstep::shm {

P2pJoin connect_p2p(int ranks) {
  const auto segment = P2pSegment::make(ranks);
  // The address is that in this process, also if another process joins.
  return [segment, address = segment->address(), ranks](int rank, Kind) {
    return std::make_unique<PointToPoint>(Segment::open(address), rank, ranks);
  };
}

std::string name_of(int rank, pid_t pid) {
  return fmt::format("rank {} (host {}, pid {})", rank, host_name(), pid);
}

const char* const kStateOfStoppedRank = " is stopped (by SIGSTOP";

namespace {

using std::chrono::milliseconds;

static_assert(kSmallLimit == kInlineBytes && kTooManySmall > kRingEntries);

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;

TEST(PointToPoint, NamesARankThatNeverJoined) {
  const auto segment = P2pSegment::make(2);
  PointToPoint p2p(segment, 0, 2);
  Awaited result;
  Message data(kSmall);
  p2p.receive(1, 3, data, milliseconds(100), result.done());
  expect_parts(result.error(), {"rank 1 never joined"});
}

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
