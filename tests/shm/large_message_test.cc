#include "lockstep/shm/large_message.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/shm/p2p.h"
#include "tests/shm/ranks.h"

namespace lockstep::shm {
namespace {

constexpr size_t kBytes = 100'000;

TEST(LargeMessage, GoesToAnotherProcessWhichKeepsTheSegmentOpen) {
  SpareSegments spares;
  const Message data = noise(kBytes, 1);
  const LargeMessage message(data, spares);
  RankProcess receiver([&] {
    OpenedSegments opened;
    Message got(kBytes);
    LargeMessage::take(message.address(), got, opened);
    require(got == data, "another message");
    require(opened.open(message.address()) == opened.open(message.address()),
            "opened again");
    SegmentAddress other = message.address();
    other.inode += 1;
    try {
      opened.open(other);
    } catch (const CommError&) {
      return;
    }
    require(false, "another segment was taken for it");
  });
  EXPECT_EQ(receiver.wait(), "");
  EXPECT_TRUE(message.is_taken());
}

TEST(LargeMessage, LeavesItsSegmentToTheNextOnceTaken) {
  SpareSegments spares;
  OpenedSegments opened;
  const Message data = noise(kBytes, 1);
  Message got(kBytes);
  std::optional<LargeMessage> message(std::in_place, data, spares);
  const SegmentAddress address = message->address();
  LargeMessage::take(address, got, opened);
  message.reset();
  const Message less = noise(kBytes * 2 / 3, 2);
  message.emplace(less, spares);
  EXPECT_EQ(message->address(), address);
  EXPECT_FALSE(message->is_taken());
}

TEST(LargeMessage, KeepsItsSegmentFromTheNextUnlessTaken) {
  SpareSegments spares;
  const Message data = noise(kBytes, 1);
  const auto segment = [&] {
    const LargeMessage message(data, spares);
    return Segment::open(message.address());
  }();
  const LargeMessage next(data, spares);
  EXPECT_NE(next.address(), segment->address());
}

TEST(SpareSegments, KeepSoMuchOnly) {
  SpareSegments spares;
  constexpr size_t kThird = SpareSegments::kMaxBytes / 3;
  std::vector<std::weak_ptr<const Segment>> given;
  for (int i = 0; i < 4; ++i) {
    auto segment = Segment::create(kThird);
    given.push_back(segment);
    spares.give_back(std::move(segment));
  }
  auto huge = Segment::create(SpareSegments::kMaxBytes + 1);
  given.push_back(huge);
  spares.give_back(std::move(huge));
  const auto kept = std::count_if(given.begin(), given.end(),
                                  [](const auto& g) { return !g.expired(); });
  EXPECT_GE(kept, 2);
  EXPECT_LE(kept, 3);
  EXPECT_TRUE(given.front().expired());
  EXPECT_TRUE(given.back().expired());
}

TEST(SpareSegments, AreNotTakenForMuchLess) {
  SpareSegments spares;
  auto segment = Segment::create(1 << 20);
  const auto address = segment->address();
  spares.give_back(std::move(segment));
  EXPECT_NE(spares.take(1000)->address(), address);
  EXPECT_EQ(spares.take(900'000)->address(), address);
}

}  // namespace
}  // namespace lockstep::shm
