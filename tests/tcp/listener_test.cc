#include "lockstep/tcp/listener.h"

#include <array>
#include <fcntl.h>
#include <future>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/store/socket_address.h"
#include "tests/base/expect_problem.h"

namespace lockstep::tcp::listener_test {
namespace {

using Sockets = std::vector<Socket>;

Listener::Time in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

bool never() { return false; }

FileDescriptor unauthenticated_peer_at(const std::string& announcement) {
  const auto port_at = announcement.find(' ') + 1;
  const int port = std::stoi(announcement.substr(port_at));
  return store::connect_to(store::resolve("127.0.0.1", port).at(0),
                           in_seconds(10));
}

/// Returns whether the other end closed `socket` without sending anything.
bool is_refused(const FileDescriptor& socket) {
  char byte = 0;
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  ::fcntl(socket.get(), F_SETFL, 0);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const ssize_t received = ::recv(socket.get(), &byte, 1, 0);
  // A socket that is closed with unread bytes is reset.
  return received == 0 || (received < 0 && errno == ECONNRESET);
}

TEST(Listener, ConnectsRanksAmongStrangers) {
  Listener first("127.0.0.1", ""), second("127.0.0.1", "");
  const std::vector<std::string> announcements{first.announcement(),
                                               second.announcement()};
  // One stranger is silent, one sends nonsense, and one has a wrong proof.
  const FileDescriptor silent = unauthenticated_peer_at(announcements[0]);
  const FileDescriptor noisy = unauthenticated_peer_at(announcements[0]);
  const FileDescriptor forger = unauthenticated_peer_at(announcements[0]);
  std::array<char, 200> noise{};
  ASSERT_EQ(::send(noisy.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 200);
  std::array<char, 48> forged{'L', 'S', 'M', 'E', 'S', 'H', '0', '1', 1};
  ASSERT_EQ(::send(forger.get(), forged.data(), forged.size(), MSG_NOSIGNAL),
            48);
  auto second_sockets = std::async(std::launch::async, [&] {
    // The strangers must be refused while the ranks connect.
    EXPECT_TRUE(is_refused(noisy));
    EXPECT_TRUE(is_refused(forger));
    return second.connect(1, announcements, in_seconds(60), never);
  });
  const Sockets first_sockets =
      first.connect(0, announcements, in_seconds(60), never);
  const Sockets sockets = second_sockets.get();
  ASSERT_TRUE(first_sockets[1].fd.is_open());
  ASSERT_TRUE(sockets[0].fd.is_open());
  EXPECT_FALSE(first_sockets[0].fd.is_open());
  char byte = 'x';
  ASSERT_EQ(::send(first_sockets[1].fd.get(), &byte, 1, MSG_NOSIGNAL), 1);
  ::fcntl(sockets[0].fd.get(), F_SETFL, 0);
  char received = 0;
  ASSERT_EQ(::recv(sockets[0].fd.get(), &received, 1, 0), 1);
  EXPECT_EQ(received, 'x');
}

TEST(Listener, NamesTheRankThatDoesNotComeInTime) {
  Listener listener("127.0.0.1", "");
  const std::vector<std::string> announcements{
      listener.announcement(), Listener("127.0.0.1", "").announcement()};
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  expect_problem(error_of<CommError>([&] {
                   listener.connect(0, announcements, deadline, never);
                 }),
                 ErrorCode::kRanksNotConnected, {"rank 1"});
}

TEST(Listener, NamesTheRankThatNoLongerListens) {
  Listener listener("127.0.0.1", "");
  const std::vector<std::string> announcements{
      Listener("127.0.0.1", "").announcement(), listener.announcement()};
  expect_problem(error_of<CommError>([&] {
                   listener.connect(1, announcements, in_seconds(60), never);
                 }),
                 ErrorCode::kRanksNotConnected, {"rank 0"});
}

TEST(Listener, GivesUpWhenTheAttemptIsOver) {
  Listener listener("127.0.0.1", "");
  const std::vector<std::string> announcements{
      listener.announcement(), Listener("127.0.0.1", "").announcement()};
  EXPECT_THROW(
      listener.connect(0, announcements, in_seconds(600), [] { return true; }),
      CommError);
}

// Texts without a valid address, port or key, and a key that is too short.
TEST(Listener, RefusesAnnouncementsThatAreNone) {
  Listener listener("127.0.0.1", "");
  const std::string good = listener.announcement();
  const std::string key = good.substr(good.rfind(' ') + 1);
  for (const std::string& bad :
       {std::string(), std::string("127.0.0.1"), "127.0.0.1 x " + key,
        "127.0.0.1 0 " + key, "127.0.0.1 99999 " + key,
        "127.0.0.1 80 " + key.substr(1), "127.0.0.1 80 z" + key.substr(1)}) {
    SCOPED_TRACE(bad);
    const std::vector<std::string> announcements{good, bad};
    expect_problem(error_of<CommError>([&] {
                     listener.connect(0, announcements, in_seconds(60), never);
                   }),
                   ErrorCode::kRanksNotConnected, {});
  }
}

}  // namespace
}  // namespace lockstep::tcp::listener_test
