// Tests how the server handles malicious peers. In every test, the job
// continues.
#include <atomic>
#include <deque>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/store/raw_peer.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;

// Requests are the third and later frames of a client.
constexpr int kFirstRequest = 2;

class HostilePeers : public testing::Test {
 protected:
  static ServerOptions options() {
    ServerOptions options;
    options.handshake_time = milliseconds(300);
    options.most_unauthenticated = 16;
    return options;
  }

  // The job continues: existing clients can work, and new clients can connect.
  void TearDown() override {
    EXPECT_EQ(client_.add("work", 1), ++work_);
    Client another(served_.of(agent(2)));
    EXPECT_EQ(another.get("work"), std::to_string(work_));
  }

  LogCapture log_;
  Served served_{options()};
  Client client_{served_.of(agent())};
  int work_ = 0;
};

TEST_F(HostilePeers, APortScannerIsNotListenedTo) {
  for (int i = 0; i < 50; ++i) RawPeer(served_.port()).close();
  for (const std::string& greeting :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
        std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string(5000, '\0'),
        std::string(4, '\0'), std::string(2000, '\xff')}) {
    RawPeer scanner(served_.port());
    scanner.send(greeting);
    EXPECT_TRUE(scanner.is_closed()) << greeting.substr(0, 10);
  }
}

TEST_F(HostilePeers, AWrongProofIsRefusedAndTheConnectionClosed) {
  RawPeer peer(served_.port());
  peer.send_frame(encode(Hello{.identity = agent(9), .nonce = random_nonce()}));
  ASSERT_TRUE(peer.receive_frame());
  peer.send_frame(as_text(random_nonce()));
  EXPECT_EQ(peer.receive_frame(), encode_wrong_proof());
  EXPECT_TRUE(peer.is_closed());
  EXPECT_PRED2(contains, log_.text(), "127.0.0.1:");
}

TEST_F(HostilePeers, AHandshakeCantBeReplayed) {
  std::vector<std::string> recorded;
  {
    ManInTheMiddle proxy(served_.port(),
                         [&](int, const auto& body, RawPeer& server) {
                           recorded.push_back(body);
                           server.send_frame(body);
                         });
    Client client(served_.of(agent(3), proxy.port()));
    client.set("mine", "1");
  }
  ASSERT_GE(recorded.size(), 3U);
  RawPeer peer(served_.port());
  peer.send_frame(recorded[0]);
  ASSERT_TRUE(peer.receive_frame());
  for (size_t i = 1; i < recorded.size(); ++i) peer.send_frame(recorded[i]);
  EXPECT_EQ(peer.receive_frame(), encode_wrong_proof());
  EXPECT_EQ(peer.receive_frame(), std::nullopt);
}

TEST_F(HostilePeers, AMessageOnAnOpenConnectionCantBeReplayed) {
  ManInTheMiddle proxy(served_.port(),
                       [&](int number, const auto& body, RawPeer& server) {
                         server.send_frame(body);
                         if (number == kFirstRequest) server.send_frame(body);
                       });
  auto options = served_.of(agent(3), proxy.port());
  options.answer_time = milliseconds(500);
  Client victim(options);
  victim.add("count", 1);
  // The connection is closed, and the second addition was not counted.
  EXPECT_THROW(victim.add("count", 1), CommError);
  EXPECT_EQ(client_.get("count"), "1");
  EXPECT_PRED2(contains, log_.text(), "repeated or injected");
}

TEST_F(HostilePeers, AMessageOnAnOpenConnectionCantBeAltered) {
  ManInTheMiddle proxy(served_.port(),
                       [&](int number, std::string body, RawPeer& server) {
                         const auto at = body.find("10 coins");
                         if (number >= kFirstRequest && at != body.npos)
                           body[at] = '9';
                         server.send_frame(body);
                       });
  auto options = served_.of(agent(3), proxy.port());
  options.answer_time = milliseconds(500);
  Client victim(options);
  EXPECT_THROW(victim.set("wanted", "10 coins"), CommError);
  EXPECT_EQ(client_.get("wanted"), std::nullopt);
}

TEST_F(HostilePeers, AnswersCantBeForged) {
  // An impostor that listens at the server's address.
  int port = 0;
  const auto listeners = listen_at("127.0.0.1", port);
  std::thread impostor([&] {
    pollfd ready{listeners[0].get(), POLLIN, 0};
    if (::poll(&ready, 1, 20'000) != 1) return;
    RawPeer client(FileDescriptor(
        ::accept4(listeners[0].get(), nullptr, nullptr, SOCK_CLOEXEC)));
    client.receive_frame();
    client.send_frame(encode(Challenge{.nonce = random_nonce()}));
    client.receive_frame();
    client.send_frame(
        Handshake(Key(random_nonce()), "", "").encode(AdmissionReply{}));
  });
  EXPECT_TRUE(
      is_error(error_of<CommError>([&] { Client(served_.of(agent(3), port)); }),
               ErrorCode::kBadSecret, {"127.0.0.1:" + std::to_string(port)}));
  impostor.join();
}

TEST_F(HostilePeers, ALengthBeyondTheLimitEndsTheConnection) {
  for (const std::string& length :
       {std::string("\xff\xff\xff\xff", 4), std::string("\x01\x04\0\0", 4)}) {
    RawPeer peer(served_.port());
    peer.send(length);
    EXPECT_TRUE(peer.is_closed());
  }
  // The same for a client that has been admitted.
  ManInTheMiddle proxy(served_.port(),
                       [&](int number, const auto& body, RawPeer& server) {
                         if (number == kFirstRequest)
                           server.send("\xff\xff\xff\x7f");
                         server.send_frame(body);
                       });
  auto options = served_.of(agent(3), proxy.port());
  options.answer_time = milliseconds(500);
  Client victim(options);
  EXPECT_THROW(victim.set("a", "b"), CommError);
  EXPECT_PRED2(contains, log_.text(), "a message is too long");
}

TEST_F(HostilePeers, ASlowLorisIsNotWaitedFor) {
  const std::string hello =
      framed(encode(Hello{.identity = agent(9), .nonce = random_nonce()}));
  RawPeer loris(served_.port());
  const Stopwatch watch;
  size_t sent = 0;
  // A byte now and then. The whole message would take longer than the test may.
  while (sent < hello.size() && loris.send({&hello[sent], 1})) {
    ++sent;
    pollfd ready{loris.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 50) == 1) break;
  }
  EXPECT_LT(sent, hello.size());
  EXPECT_LT(watch.seconds(), 10);
  // The same for a client that starts correctly and then sends nothing.
  RawPeer silent(served_.port());
  silent.send(hello);
  EXPECT_TRUE(silent.receive_frame());
  EXPECT_TRUE(silent.is_closed());
}

TEST_F(HostilePeers, AFloodDoesNotShutOutThoseWhoBelong) {
  std::atomic<int> connections = 0;
  std::jthread flood([&](const std::stop_token& end) {
    std::deque<RawPeer> held;
    while (!end.stop_requested()) {
      held.emplace_back(served_.port());
      ++connections;
      if (held.size() > 200) held.pop_front();
    }
  });
  const Stopwatch watch;
  int newcomers = 0;
  while ((connections < 3000 || newcomers < 10) && watch.seconds() < 60) {
    const auto number = static_cast<uint8_t>(10 + newcomers++ % 100);
    Client newcomer(served_.of(agent(number)));
    newcomer.add("newcomers", 1);
    client_.add("work", 1);
    ++work_;
  }
  flood = {};
  EXPECT_GE(connections, 3000);
  EXPECT_GE(newcomers, 10);
  // All of this gives only a few log lines.
  const auto lines = log_.lines();
  EXPECT_LT(lines.size(), 10U);
}

TEST_F(HostilePeers, ARequestBeforeTheHandshakeIsNone) {
  client_.set("left/1", "no");
  RawPeer rogue(served_.port());
  rogue.send_frame(encode(
      {.operation = Operation::kSet, .keys = {"left/1"}, .value = "yes"}));
  EXPECT_TRUE(rogue.is_closed());
  // The same for a client that stops between messages.
  RawPeer other(served_.port());
  other.send_frame(encode(Hello{.identity = agent(9)}));
  other.receive_frame();
  other.send_frame(encode(
      {.operation = Operation::kSet, .keys = {"left/1"}, .value = "yes"}));
  EXPECT_EQ(other.receive_frame(), encode_wrong_proof());
  EXPECT_TRUE(other.is_closed());
  EXPECT_EQ(client_.get("left/1"), "no");
}

TEST_F(HostilePeers, AnotherVersionIsToldWhichOneIsSpoken) {
  RawPeer peer(served_.port());
  peer.send_frame(encode(Hello{.version = 99, .identity = agent(9)}));
  const auto answer = peer.receive_frame();
  ASSERT_TRUE(answer);
  EXPECT_EQ(decode_challenge(*answer).version, kProtocolVersion);
  EXPECT_TRUE(peer.is_closed());
}

}  // namespace
}  // namespace lockstep::store
