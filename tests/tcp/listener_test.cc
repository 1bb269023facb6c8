#include "lockstep/tcp/listener.h"

#include <array>
#include <fcntl.h>
#include <functional>
#include <future>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/store/socket_address.h"
#include "tests/base/expect_problem.h"

namespace lockstep::tcp::listener_test {
namespace {

using Sockets = std::vector<store::SecureSocket>;

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

/// Returns whether the other end closed `socket`, and sent nothing but an alert
/// of TLS (a record of type 21).
bool is_refused(const FileDescriptor& socket) {
  std::array<char, 100> bytes{};
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  ::fcntl(socket.get(), F_SETFL, 0);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ssize_t received = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  if (received > 0 && bytes[0] == 21) {
    received = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  }
  // A socket that is closed with unread bytes is reset.
  return received == 0 || (received < 0 && errno == ECONNRESET);
}

/// Two ranks that connect, while `strangers` do what they do.
std::pair<Sockets, Sockets> connect_two(
    Data data, const std::function<void(std::string)>& strangers) {
  Listener first("127.0.0.1", "", data), second("127.0.0.1", "", data);
  const std::vector<std::string> announcements{first.announcement(),
                                               second.announcement()};
  auto others = std::async(std::launch::async, [&] {
    strangers(announcements[0]);
    return second.connect(1, announcements, in_seconds(60), never);
  });
  Sockets sockets = first.connect(0, announcements, in_seconds(60), never);
  return {std::move(sockets), others.get()};
}

TEST(Listener, ConnectsRanksAmongStrangers) {
  for (const auto data : {Data::kPlain, Data::kEncrypted}) {
    FileDescriptor silent;
    auto [first, second] = connect_two(data, [&](const auto& announcement) {
      // One stranger is silent, one sends nonsense, one has a wrong key, and
      // one has a right key under another name.
      silent = unauthenticated_peer_at(announcement);
      const FileDescriptor noisy = unauthenticated_peer_at(announcement);
      std::array<char, 200> noise{};
      EXPECT_EQ(::send(noisy.get(), noise.data(), noise.size(), MSG_NOSIGNAL),
                200);
      EXPECT_TRUE(is_refused(noisy));
      for (const std::string name : {"rank 1 to rank 0", "rank 2 to rank 0"}) {
        auto forger = store::SecureSocket::client(
            unauthenticated_peer_at(announcement), name, store::Key::random());
        auto outcome = forger.shake_hands();
        while (outcome == store::SecureSocket::Outcome::kWantsRead) {
          pollfd ready{forger.fd(), POLLIN, 0};
          ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
          outcome = forger.shake_hands();
        }
        EXPECT_EQ(outcome, store::SecureSocket::Outcome::kRefused);
      }
    });
    ASSERT_TRUE(first[1].is_open());
    ASSERT_TRUE(second[0].is_open());
    EXPECT_FALSE(first[0].is_open());
    EXPECT_EQ(first[1].is_encrypted(), data == Data::kEncrypted);
    const std::byte sent{'x'};
    size_t count = 0;
    ASSERT_EQ(first[1].write({&sent, 1}, count),
              store::SecureSocket::Outcome::kDone);
    pollfd ready{second[0].fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
    std::byte received{};
    ASSERT_EQ(second[0].read({&received, 1}, count),
              store::SecureSocket::Outcome::kDone);
    EXPECT_EQ(received, sent);
  }
}

TEST(Listener, ConnectsRanksInAFloodOfConnections) {
  std::vector<FileDescriptor> flood;
  const auto [first, second] =
      connect_two(Data::kPlain, [&](const auto& announcement) {
        for (int i = 0; i < 500; ++i) {
          flood.push_back(unauthenticated_peer_at(announcement));
        }
      });
  EXPECT_TRUE(first[1].is_open());
  EXPECT_TRUE(second[0].is_open());
}

// Rank 0 drops the first connections of rank 1, as a flooded rank may.
TEST(Listener, ConnectsAgainToARankThatClosedTheConnection) {
  int port = 0;
  auto front = store::listen_at("127.0.0.1", port);
  Listener first("127.0.0.1", ""), second("127.0.0.1", "");
  const std::string real = first.announcement();
  const std::vector<std::string> announcements{
      fmt::format("127.0.0.1 {} {}", port, real.substr(real.find(' ', 10) + 1)),
      second.announcement()};
  auto others = std::async(std::launch::async, [&] {
    return second.connect(1, announcements, in_seconds(60), never);
  });
  for (int i = 0; i < 3; ++i) {
    pollfd ready{front[0].get(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
    const FileDescriptor dropped(
        ::accept4(front[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(dropped.is_open());
  }
  front.clear();
  expect_problem(error_of<CommError>([&] { others.get(); }),
                 ErrorCode::kRanksNotConnected, {"rank 0"});
}

TEST(Listener, RefusesRanksThatDontAgreeOnEncryption) {
  Listener plain("127.0.0.1", "");
  const Listener encrypted("127.0.0.1", "", Data::kEncrypted);
  const std::vector<std::string> announcements{plain.announcement(),
                                               encrypted.announcement()};
  expect_problem(
      error_of<InvalidArgument>(
          [&] { plain.connect(0, announcements, in_seconds(60), never); }),
      ErrorCode::kBadVariable,
      {"plain data on rank 0, and encrypted on rank 1", "LOCKSTEP_ENCRYPT"});
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
  const std::string key = good.substr(good.find(' ', 10) + 1);
  for (const std::string& bad :
       {std::string(), std::string("127.0.0.1"), "127.0.0.1 x " + key,
        "127.0.0.1 0 " + key, "127.0.0.1 99999 " + key,
        "127.0.0.1 80 " + key.substr(1), "127.0.0.1 80 z" + key.substr(1),
        "127.0.0.1 80 " + key.substr(0, key.find(' '))}) {
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
