// Agents that have met, and malicious peers.
#include <atomic>
#include <future>
#include <poll.h>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/launch/agent/peer_watch.h"
#include "lockstep/launch/rendezvous/rendezvous.h"
#include "lockstep/store/secret_file.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"
#include "tests/store/raw_peer.h"

namespace lockstep::launch {
namespace {

// Two agents on loopback, which use the user's secret.
class HostilePeersOfAgents : public testing::Test {
 protected:
  HostilePeersOfAgents() {
    for (Rendezvous& rendezvous : agents_) {
      rendezvous.store.set_prefix(rendezvous.prefix + "attempt 0/");
      rendezvous.store.begin_round(0, 2);
    }
  }

  store::ClientOptions client(store::Identity who, const store::Key& key) {
    const Endpoint& address = agents_[0].store.address();
    store::ClientOptions result;
    result.host = address.host;
    result.port = address.port;
    result.who = std::move(who);
    result.key = key;
    result.connect_time = std::chrono::seconds(10);
    return result;
  }

  store::Identity worker(int rank) const {
    return {.role = store::Role::kWorker,
            .run_id = pair_.options.run_id,
            .rank = rank,
            .world_size = 2};
  }

  // Expects that the agents still receive each other's messages, and no others.
  void expect_to_go_on() {
    PeerWatch first(agents_[0], {.keep_alive_s = 30});
    PeerWatch second(agents_[1], {.keep_alive_s = 30});
    first.announce_done();
    second.announce_done();
    for (PeerWatch* watch : {&first, &second}) {
      pollfd ready{watch->fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 30'000), 1);
      const PeerNews news = watch->take_news();
      EXPECT_TRUE(news.all_done);
      EXPECT_FALSE(news.notice) << news.notice->why;
    }
  }

  Pair pair_;
  std::vector<Rendezvous>& agents_ = pair_.agents;
};

TEST_F(HostilePeersOfAgents, AWorkerCantEndTheJobInAnAgentsName) {
  store::Client rogue(client(worker(0), agents_[0].store.worker_key(0, 0)));
  const std::string prefix = agents_[0].prefix + "attempt 0/";
  for (const char* key : {"failed", "left/0", "left/1", "done/0", "beat/1"}) {
    rogue.set(prefix + key, R"({"why": "I say so"})");
    EXPECT_EQ(agents_[0].store.get(key), std::nullopt) << key;
  }
  expect_to_go_on();
}

TEST_F(HostilePeersOfAgents, AnAgentCantSayThatAnotherOneLeft) {
  agents_[0].store.set("left/0", "no");
  // Acts as another process, because tokens belong to processes.
  store::Identity who{.role = store::Role::kAgent,
                      .run_id = pair_.options.run_id};
  who.token[0] = static_cast<uint8_t>(who.token[0] ^ 1);
  store::Client other(client(who, store::loopback_secret().key_of(who)));
  EXPECT_TRUE(is_error(error_of<store::RequestRefused>([&] {
                         other.set(agents_[0].prefix + "attempt 0/left/0",
                                   "yes");
                       }),
                       ErrorCode::kStoreRefused));
  expect_to_go_on();
}

TEST_F(HostilePeersOfAgents, WhoKnowsNoSecretIsNotHeard) {
  const store::Identity agent{.role = store::Role::kAgent,
                              .run_id = pair_.options.run_id};
  for (const auto& guess : {store::no_secret(), store::JobSecret("password"),
                            store::JobSecret::random()}) {
    EXPECT_TRUE(is_error(error_of<CommError>([&] {
                           store::Client guesser(
                               client(agent, guess.key_of(agent)));
                         }),
                         ErrorCode::kBadSecret));
  }
  const int port = agents_[0].store.address().port;
  store::RawPeer scanner(port);
  scanner.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(scanner.is_closed());
  expect_to_go_on();
}

TEST_F(HostilePeersOfAgents, ARankIsNotTakenFromTheProcessThatHasIt) {
  const store::Key key = agents_[0].store.worker_key(1, 0);
  store::Client rank(client(worker(1), key));
  store::Identity hijacker = worker(1);
  hijacker.token[0] = static_cast<uint8_t>(hijacker.token[0] ^ 1);
  EXPECT_TRUE(is_error(error_of<store::Refused>([&] {
                         store::Client stolen(client(hijacker, key));
                       }),
                       ErrorCode::kStoreRefused, {"rank 1"}));
  rank.set("still", "here");
  expect_to_go_on();
}

TEST(Admission, IsRefusedToAnAgentWithAnotherSecret) {
  const TemporaryFolder folder;
  const auto with_secret = [&](RunOptions options, const std::string& text) {
    options.secret_file = folder.path(text);
    write_text(options.secret_file, std::string(20, 's') + text);
    std::filesystem::permissions(options.secret_file,
                                 std::filesystem::perms::owner_read);
    return options;
  };
  RunOptions options = two_nodes(free_endpoint());
  struct Enough {};
  std::atomic<bool> is_refused = false;
  auto first = std::async(std::launch::async, [&] {
    EXPECT_THROW(join_rendezvous(with_secret(options, "one"),
                                 [&] {
                                   if (is_refused) throw Enough{};
                                 }),
                 Enough);
  });
  // The first agent to arrive serves the store.
  const auto endpoint = parse_endpoint("", options.endpoint, 0);
  for (int i = 0; i < 3000 && !is_reachable(endpoint, 1000); ++i) {
    ::poll(nullptr, 0, 10);
  }
  const auto text = error_of<LaunchError>(
      [&] { join_rendezvous(with_secret(options, "other"), never_stop); });
  is_refused = true;
  EXPECT_TRUE(is_error(text, ErrorCode::kStoreRefused, {options.endpoint}));
  EXPECT_EQ(text.find("sss"), std::string::npos);
}

TEST(Admission, NeedsASecretForSeveralNodesOnANetwork) {
  RunOptions options;
  options.nodes = 2;
  options.node_rank = 1;
  options.master_addr = "192.0.2.1";  // no machine (RFC 5737)
  options.master_port = 29500;
  const auto text =
      error_of<InvalidArgument>([&] { join_rendezvous(options, never_stop); });
  EXPECT_TRUE(is_error(
      text, ErrorCode::kBadSecret,
      {"'192.0.2.1'", "openssl rand -hex 32 > job.secret", "--no-secret"}));
}

TEST(Admission, IsNotOfferedAtANameOfAnotherHost) {
  RunOptions options;
  options.nodes = 2;
  options.node_rank = 0;
  options.master_addr = "192.0.2.1";
  options.master_port = 29500;
  options.has_no_secret = true;
  EXPECT_TRUE(is_error(
      error_of<CommError>([&] { join_rendezvous(options, never_stop); }),
      ErrorCode::kCannotListen, {"'192.0.2.1'", "--rdzv-conf interface=eth0"}));
  options.interface = "no-such-interface";
  EXPECT_TRUE(is_error(
      error_of<CommError>([&] { join_rendezvous(options, never_stop); }),
      ErrorCode::kCannotListen, {"'no-such-interface'"}));
}

}  // namespace
}  // namespace lockstep::launch
