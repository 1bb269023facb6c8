#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "lockstep/tcp/point_to_point.h"
#include "tests/tcp/ranks.h"

namespace lockstep::tcp::point_to_point_hostile_test {
namespace {

using std::chrono::milliseconds;

constexpr size_t kSmall = 64;
constexpr size_t kLarge = 1 << 20;
constexpr size_t kHuge = 64 << 20;  // more than sockets hold

/// Rank 0's p2p, and the bare socket of rank 1.
class Spoiled : public testing::Test {
 protected:
  Spoiled() {
    auto [first, second] = connected_pair();
    std::vector<store::SecureSocket> sockets(2);
    sockets[1] = std::move(first);
    socket_ = std::move(second);
    p2p_.emplace(0, std::move(sockets), rank_names(2));
  }
  void put(const Frame& frame, size_t payload = 0) {
    Message bytes(sizeof frame + payload);
    std::memcpy(bytes.data(), &frame, sizeof frame);
    ASSERT_EQ(::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Frame next_frame() {
    Frame frame;
    EXPECT_EQ(::recv(socket_.fd(), &frame, sizeof frame, MSG_WAITALL),
              static_cast<ssize_t>(sizeof frame));
    return frame;
  }
  Awaited receive(size_t bytes) {
    data_.resize(bytes);
    Awaited result;
    p2p_->receive(1, 3, data_, std::chrono::seconds(60), result.done());
    return result;
  }
  Awaited send(size_t bytes) {
    data_.resize(bytes);
    Awaited result;
    p2p_->send(1, 3, data_, std::chrono::seconds(60), result.done());
    return result;
  }
  void expect_refused(Awaited pending, const std::string& part) {
    expect_parts(pending.error(), {"rank 1 (host a) was disconnected",
                                   "violated the message protocol", part});
    std::byte byte{};
    EXPECT_LE(::recv(socket_.fd(), &byte, 1, MSG_WAITALL), 0);
  }

  Message data_;
  store::SecureSocket socket_;
  std::optional<PointToPoint> p2p_;
};

TEST_F(Spoiled, UnknownKindsAreRefused) {
  put({.kind = static_cast<FrameKind>(0)});
  expect_refused(receive(kSmall), "kind 0");
}

TEST_F(Spoiled, LargeMessagesWithoutAskingAreRefused) {
  put({.kind = FrameKind::kMessage, .tag = 3, .bytes = kEagerBytes + 1});
  expect_refused(receive(kSmall), "4097 bytes");
}

TEST_F(Spoiled, TooManyMessagesWithoutAskingAreRefused) {
  Awaited pending = receive(kSmall);
  for (int i = 0; i < 17; ++i) {
    put({.kind = FrameKind::kMessage, .tag = 4, .bytes = kEagerBytes},
        kEagerBytes);
  }
  expect_refused(pending, "unsolicited");
}

TEST_F(Spoiled, EndlessReasonsAreRefused) {
  put({.kind = FrameKind::kFail, .bytes = UINT64_MAX});
  expect_refused(receive(kSmall), "18446744073709551615 bytes");
}

TEST_F(Spoiled, MessagesOutOfOrderAreRefused) {
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = kLarge, .id = 2});
  expect_refused(receive(kSmall), "message 2 after message 0");
}

TEST_F(Spoiled, DataThatNobodyAskedForIsRefused) {
  put({.kind = FrameKind::kAnnounce, .tag = 4, .bytes = kLarge, .id = 1});
  put({.kind = FrameKind::kData, .bytes = 8, .id = 1}, 8);
  expect_refused(receive(kSmall), "message 1, which was not asked for");
}

TEST_F(Spoiled, MoreDataThanAnnouncedIsRefused) {
  Awaited pending = receive(10);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = 10, .id = 1});
  EXPECT_EQ(next_frame().kind, FrameKind::kAccept);
  put({.kind = FrameKind::kData, .bytes = 11, .id = 1}, 11);
  expect_refused(pending, "11 bytes for a message that needs only 10 more");
}

TEST_F(Spoiled, EmptyDataIsRefused) {
  Awaited pending = receive(10);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = 10, .id = 1});
  EXPECT_EQ(next_frame().kind, FrameKind::kAccept);
  put({.kind = FrameKind::kData, .bytes = 0, .id = 1});
  expect_refused(pending, "0 bytes");
}

TEST_F(Spoiled, ASizeBeyondAllMemoryIsTheReceiversError) {
  Awaited pending = receive(kSmall);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = UINT64_MAX, .id = 1});
  expect_parts(pending.error(), {"rank 1 sent 18446744073709551615 bytes"});
  EXPECT_EQ(next_frame().kind, FrameKind::kRefuse);
}

class SpoiledAnswers : public Spoiled,
                       public testing::WithParamInterface<FrameKind> {};

TEST_P(SpoiledAnswers, ToNoMessageAreRefused) {
  Awaited pending = receive(kSmall);
  put({.kind = GetParam(), .id = 1});
  expect_refused(pending, "message 1 of 0");
}

INSTANTIATE_TEST_SUITE_P(Kinds, SpoiledAnswers,
                         testing::Values(FrameKind::kAccept, FrameKind::kRefuse,
                                         FrameKind::kDrop,
                                         FrameKind::kWithdraw));

TEST_F(Spoiled, CreditThatWasNotUsedIsRefused) {
  Awaited pending = send(kLarge);
  EXPECT_EQ(next_frame().kind, FrameKind::kAnnounce);
  put({.kind = FrameKind::kCredit, .bytes = 1});
  expect_refused(pending, "credit for 1 bytes, of 0");
}

TEST_F(Spoiled, AReasonIsShownWithoutControlCharacters) {
  Awaited pending = receive(kSmall);
  const std::string reason = "\x1b[31mred";
  put({.kind = FrameKind::kFail, .bytes = reason.size()});
  ASSERT_GT(::send(socket_.fd(), reason.data(), reason.size(), MSG_NOSIGNAL),
            0);
  const std::string error = pending.error();
  expect_parts(error, {"rank 1 (host a) failed: ?[31mred"});
}

// Frames with values at random, some of which fit. Whatever they do, all
// operations end when the connection does.
TEST_F(Spoiled, NoFramesKeepOperationsFromEnding) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    auto [first, second] = connected_pair();
    std::vector<store::SecureSocket> sockets(2);
    sockets[1] = std::move(first);
    PointToPoint p2p(0, std::move(sockets), rank_names(2));
    std::vector<Message> memory;
    for (size_t i = 0; i < 8; ++i) memory.emplace_back(i < 4 ? 8 : 10'000);
    std::vector<Awaited> pending(8);
    const auto timeout = std::chrono::seconds(60);
    for (size_t i = 0; i < 8; ++i) {
      const int tag = static_cast<int>(i % 4 / 2);
      if (i % 2 == 0) {
        p2p.receive(1, tag, memory[i], timeout, pending[i].done());
      } else {
        p2p.send(1, tag, memory[i], timeout, pending[i].done());
      }
    }
    Message bytes;
    const std::array<uint64_t, 4> sizes{0, 8, 10'000, UINT64_MAX};
    uint64_t next_id = 1;
    for (int i = 0; i < 12; ++i) {
      const Frame frame{.kind = static_cast<FrameKind>(1 + random() % 9),
                        .tag = static_cast<int>(random() % 3),
                        .bytes = sizes[random() % (random() % 8 == 0 ? 4 : 3)],
                        .id = random() % 4 == 0 ? random() % 5 : next_id};
      if (frame.kind == FrameKind::kAnnounce) ++next_id;
      const auto header = std::as_bytes(std::span(&frame, 1));
      bytes.insert(bytes.end(), header.begin(), header.end());
      const bool has_data = frame.kind == FrameKind::kMessage ||
                            frame.kind == FrameKind::kData ||
                            frame.kind == FrameKind::kFail;
      if (has_data && frame.bytes <= 10'000) {
        bytes.resize(bytes.size() + frame.bytes);
      }
    }
    // It may have been disconnected already.
    ::send(second.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    second = store::SecureSocket();
    for (auto& each : pending) each.error();
  }
}

// Answers that cross a kWithdraw, in either direction.
TEST_F(Spoiled, AnswersToMessagesThatAreGoneAreIgnored) {
  Awaited timed_out;
  data_.resize(kLarge);
  p2p_->send(1, 3, data_, milliseconds(1), timed_out.done());
  EXPECT_NE(timed_out.error(), "no error");
  EXPECT_EQ(next_frame().kind, FrameKind::kAnnounce);
  EXPECT_EQ(next_frame().kind, FrameKind::kWithdraw);
  for (const FrameKind kind :
       {FrameKind::kAccept, FrameKind::kRefuse, FrameKind::kDrop}) {
    put({.kind = kind, .id = 1});
  }
  Awaited pending = receive(kSmall);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = kLarge, .id = 1});
  EXPECT_NE(pending.error(), "no error");
  put({.kind = FrameKind::kWithdraw, .id = 1});
  pending = receive(kSmall);
  put({.kind = FrameKind::kMessage, .tag = 3, .bytes = kSmall}, kSmall);
  EXPECT_EQ(pending.error(), "no error");
}

TEST_F(Spoiled, AReceiveFailsIfItsSendDoes) {
  Awaited pending = receive(kLarge);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = kLarge, .id = 1});
  EXPECT_EQ(next_frame().kind, FrameKind::kAccept);
  put({.kind = FrameKind::kData, .bytes = 8, .id = 1}, 8);
  put({.kind = FrameKind::kWithdraw, .id = 1});
  expect_parts(pending.error(), {"rank 1 (host a) gave up on the message"});
}

// The rest of a chunk goes elsewhere, and the next message arrives.
TEST_F(Spoiled, AReceiveThatTimesOutAmidAChunkLeavesItsMemoryAlone) {
  Awaited timed_out;
  Message data(kLarge);
  p2p_->receive(1, 3, data, milliseconds(200), timed_out.done());
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = kLarge, .id = 1});
  EXPECT_EQ(next_frame().kind, FrameKind::kAccept);
  put({.kind = FrameKind::kData, .bytes = 1000, .id = 1}, 500);
  expect_parts(timed_out.error(), {"in time", "rank 1 (host a) is connected"});
  EXPECT_EQ(next_frame().kind, FrameKind::kDrop);
  const Message rest(500, std::byte{1});
  ASSERT_EQ(::send(socket_.fd(), rest.data(), rest.size(), MSG_NOSIGNAL), 500);
  put({.kind = FrameKind::kData, .bytes = 1000, .id = 1}, 1000);
  put({.kind = FrameKind::kWithdraw, .id = 1});
  put({.kind = FrameKind::kMessage, .tag = 3, .bytes = kSmall}, kSmall);
  EXPECT_EQ(receive(kSmall).error(), "no error");
  EXPECT_EQ(data, Message(kLarge));
}

TEST_F(Spoiled, ASendFailsIfItsReceiveDoes) {
  Awaited pending = send(kHuge);
  EXPECT_EQ(next_frame().kind, FrameKind::kAnnounce);
  put({.kind = FrameKind::kAccept, .id = 1});
  put({.kind = FrameKind::kDrop, .id = 1});
  expect_parts(pending.error(), {"rank 1 (host a) gave up on the message"});
  socket_ = store::SecureSocket();
}

TEST_F(Spoiled, TheReasonIsToldAmidALargeMessage) {
  Awaited pending = receive(kLarge);
  put({.kind = FrameKind::kAnnounce, .tag = 3, .bytes = kLarge, .id = 1});
  EXPECT_EQ(next_frame().kind, FrameKind::kAccept);
  put({.kind = FrameKind::kData, .bytes = 8, .id = 1}, 8);
  put({.kind = FrameKind::kFail});
  expect_parts(pending.error(), {"rank 1 (host a) failed: "});
}

// The promised chunk is completed, then comes the reason.
TEST_F(Spoiled, AbortsAmidALargeMessage) {
  Awaited pending = send(kHuge);
  EXPECT_EQ(next_frame().kind, FrameKind::kAnnounce);
  put({.kind = FrameKind::kAccept, .id = 1});
  Frame frame = next_frame();
  p2p_->abort("the disk is full");
  expect_parts(pending.error(), {"rank 0 (host a) failed: the disk is full"});
  data_.assign(kHuge, std::byte{1});
  while (frame.kind == FrameKind::kData) {
    Message chunk(frame.bytes);
    ASSERT_EQ(::recv(socket_.fd(), chunk.data(), chunk.size(), MSG_WAITALL),
              static_cast<ssize_t>(chunk.size()));
    EXPECT_EQ(chunk, Message(frame.bytes));
    frame = next_frame();
  }
  EXPECT_EQ(frame.kind, FrameKind::kFail);
}

TEST_F(Spoiled, FailsWhatIsUnderWayWhenItGoes) {
  Message in(kSmall);
  const Message out(kLarge);
  Awaited received, any, sent;
  const auto timeout = std::chrono::seconds(60);
  p2p_->receive(1, 3, in, timeout, received.done());
  p2p_->receive_any(5, in, timeout, any.done());
  p2p_->send(1, 4, out, timeout, sent.done());
  EXPECT_EQ(next_frame().kind, FrameKind::kAnnounce);
  p2p_.reset();
  expect_parts(received.error(),
               {"rank 0 left the group", "receive from rank 1"});
  expect_parts(any.error(), {"rank 0 left the group", "receive from any rank"});
  expect_parts(sent.error(), {"rank 0 left the group", "send to rank 1"});
  EXPECT_EQ(next_frame().kind, FrameKind::kLeave);
}

// Each starts another operation when it fails.
TEST_F(Spoiled, FailsWhatIsStartedWhileItGoes) {
  Awaited second;
  Message in(kSmall);
  PointToPoint& p2p = *p2p_;
  const auto timeout = std::chrono::seconds(60);
  p2p.receive(1, 3, in, timeout, [&](const std::exception_ptr&, int) {
    p2p.receive(1, 3, in, timeout, second.done());
  });
  p2p_.reset();
  expect_parts(second.error(), {"rank 0 left the group"});
}

TEST_F(Spoiled, AbortEndsTheOperationsOfBothSides) {
  Awaited pending = receive(kSmall);
  p2p_->abort("[comm] the disk is full");
  p2p_->abort("something else");
  EXPECT_EQ(next_frame().kind, FrameKind::kFail);
  std::string reason(16, ' ');
  ASSERT_EQ(::recv(socket_.fd(), reason.data(), 16, MSG_WAITALL), 16);
  EXPECT_EQ(reason, "the disk is full");
  const std::string why = "rank 0 (host a) failed: the disk is full";
  expect_parts(pending.error(), {why, "rank 0's receive from rank 1"});
  expect_parts(send(kSmall).error(), {why});
  expect_parts(receive(kSmall).error(), {why});
}

}  // namespace
}  // namespace lockstep::tcp::point_to_point_hostile_test
