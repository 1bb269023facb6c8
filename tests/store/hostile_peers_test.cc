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

constexpr int kFirstRequest = ManInTheMiddle::kFirstRequest;

/// Returns what a client sends first.
std::string first_of(const Identity& who, const Key& key) {
  int port = 0;
  const auto listeners = listen_at("127.0.0.1", port);
  auto client =
      SecureSocket::client(connect_to(resolve("127.0.0.1", port).at(0), soon()),
                           who.key_name(), key);
  client.shake_hands();
  RawPeer server(FileDescriptor(
      ::accept4(listeners[0].get(), nullptr, nullptr, SOCK_CLOEXEC)));
  return server.receive_record().value_or("");
}

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

TEST_F(HostilePeers, AWrongKeyIsRefusedAndTheConnectionClosed) {
  RawPeer peer(served_.port());
  peer.send(first_of(agent(9), Key::random()));
  EXPECT_TRUE(peer.is_closed());
  EXPECT_PRED2(contains, log_.text(), "127.0.0.1:");
  EXPECT_PRED2(contains, log_.text(), "does not know the job's secret");
}

TEST_F(HostilePeers, AHandshakeCantBeReplayed) {
  std::vector<std::string> recorded;
  {
    ManInTheMiddle proxy(served_.port(),
                         [&](int, const auto& record, RawPeer& server) {
                           recorded.push_back(record);
                           server.send(record);
                         });
    Client client(served_.of(agent(3), proxy.port()));
    client.add("mine", 1);
  }
  ASSERT_GT(recorded.size(), static_cast<size_t>(kFirstRequest));
  RawPeer peer(served_.port());
  for (const auto& record : recorded) peer.send(record);
  // The server's part of the handshake has another random key.
  while (const auto record = peer.receive_record()) {
  }
  EXPECT_EQ(client_.get("mine"), "1");
  EXPECT_PRED2(contains, log_.text(), "does not know the job's secret");
}

TEST_F(HostilePeers, AMessageOnAnOpenConnectionCantBeReplayed) {
  ManInTheMiddle proxy(served_.port(),
                       [&](int number, const auto& record, RawPeer& server) {
                         server.send(record);
                         if (number == kFirstRequest) server.send(record);
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
                       [&](int number, std::string record, RawPeer& server) {
                         if (number >= kFirstRequest) {
                           record.back() = static_cast<char>(record.back() ^ 1);
                         }
                         server.send(record);
                       });
  auto options = served_.of(agent(3), proxy.port());
  options.answer_time = milliseconds(500);
  Client victim(options);
  EXPECT_THROW(victim.set("wanted", "10 coins"), CommError);
  EXPECT_EQ(client_.get("wanted"), std::nullopt);
  EXPECT_PRED2(contains, log_.text(), "altered");
}

TEST_F(HostilePeers, MessagesAreEncrypted) {
  std::string all;
  {
    ManInTheMiddle proxy(served_.port(),
                         [&](int, const auto& record, RawPeer& server) {
                           all += record;
                           server.send(record);
                         });
    Client client(served_.of(agent(3), proxy.port()));
    client.set("key of the account", "ten coins");
  }
  EXPECT_PRED2(contains, all, "agent") << "the name of the key is not secret";
  EXPECT_FALSE(contains(all, "account"));
  EXPECT_FALSE(contains(all, "coins"));
}

TEST_F(HostilePeers, AnImpostorAtTheServersAddressIsNoServer) {
  // One answers as a server with another key does, and one as a web server.
  for (const bool is_tls : {true, false}) {
    int port = 0;
    auto listeners = listen_at("127.0.0.1", port);
    const auto options = served_.of(agent(3), port);
    std::optional<Server> other;
    std::thread impostor;
    if (is_tls) {
      other.emplace(ServerOptions{.run_id = "job"}, std::move(listeners));
    } else {
      impostor = std::thread([&] {
        pollfd ready{listeners[0].get(), POLLIN, 0};
        if (::poll(&ready, 1, 20'000) != 1) return;
        RawPeer client(FileDescriptor(
            ::accept4(listeners[0].get(), nullptr, nullptr, SOCK_CLOEXEC)));
        client.receive_record();
        client.send("HTTP/1.1 400 Bad Request\r\n\r\n");
        client.receive_record();
      });
    }
    EXPECT_TRUE(is_error(error_of<CommError>([&] { Client{options}; }),
                         ErrorCode::kBadSecret,
                         {"127.0.0.1:" + std::to_string(port)}));
    if (impostor.joinable()) impostor.join();
  }
}

TEST_F(HostilePeers, AClientCantClaimToBeAnother) {
  served_.server().begin_round(0, 2);
  const Identity who = worker(0);
  for (const Identity& claimed : {agent(4), worker(1)}) {
    SecurePeer peer(served_.port(), who, served_.secret().key_of(who));
    peer.send(encode(Hello{.identity = claimed}));
    EXPECT_EQ(peer.receive(), std::nullopt);
  }
  EXPECT_PRED2(contains, log_.text(), "claims to be another than it proved");
}

TEST_F(HostilePeers, ALengthBeyondTheLimitEndsTheConnection) {
  // The same for a client that has proven its key, and for one that has been
  // admitted.
  for (const bool is_admitted : {false, true}) {
    const Identity who = agent(3);
    SecurePeer victim(served_.port(), who, served_.secret().key_of(who));
    if (is_admitted) {
      victim.send(encode(Hello{.identity = who}));
      ASSERT_TRUE(victim.receive());
    }
    victim.send(std::string(is_admitted ? 32 << 20 : kMaxHelloBytes + 1, 'x'));
    EXPECT_EQ(victim.receive(), std::nullopt);
  }
  EXPECT_PRED2(contains, log_.text(), "a message is too long");
}

TEST_F(HostilePeers, ASlowLorisIsNotWaitedFor) {
  const std::string hello =
      first_of(agent(9), served_.secret().key_of(agent(9)));
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
  // The same for clients that start correctly and then send nothing.
  RawPeer silent(served_.port());
  silent.send(hello);
  EXPECT_TRUE(silent.receive_record());
  while (silent.receive_record()) {
  }
  SecurePeer proven(served_.port(), agent(9),
                    served_.secret().key_of(agent(9)));
  EXPECT_EQ(proven.receive(), std::nullopt);
  EXPECT_PRED2(contains, log_.text(), "no handshake in time");
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
  const std::string request = encode(
      {.operation = Operation::kSet, .keys = {"left/1"}, .value = "yes"});
  RawPeer rogue(served_.port());
  rogue.send(framed(request));
  EXPECT_TRUE(rogue.is_closed());
  // The same for a client that stops between messages, and for one that proves
  // its key but does not say who it is.
  RawPeer other(served_.port());
  other.send(first_of(agent(9), served_.secret().key_of(agent(9))));
  other.receive_record();
  other.send(framed(request));
  while (other.receive_record()) {
  }
  SecurePeer nameless(served_.port(), agent(9),
                      served_.secret().key_of(agent(9)));
  nameless.send(request);
  const auto refusal = nameless.receive();
  ASSERT_TRUE(refusal);
  EXPECT_NE(decode_admission_reply(*refusal).admission, Admission::kWelcome);
  EXPECT_EQ(nameless.receive(), std::nullopt);
  EXPECT_EQ(client_.get("left/1"), "no");
}

TEST_F(HostilePeers, AnotherVersionIsToldWhichOneIsSpoken) {
  const Identity who = agent(9);
  SecurePeer peer(served_.port(), who, served_.secret().key_of(who));
  peer.send(encode(Hello{.version = 99, .identity = who}));
  const auto answer = peer.receive();
  ASSERT_TRUE(answer);
  const AdmissionReply reply = decode_admission_reply(*answer);
  EXPECT_EQ(reply.admission, Admission::kOtherVersion);
  EXPECT_EQ(reply.reason, "protocol 3 is spoken here, and not 99");
  EXPECT_EQ(peer.receive(), std::nullopt);
}

}  // namespace
}  // namespace lockstep::store
