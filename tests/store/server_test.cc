#include "lockstep/store/server.h"

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/store/raw_peer.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Store, DoesWhatC10dNeeds) {
  Served served;
  Client client(served.of(agent()));
  client.set("a", "1");
  EXPECT_EQ(client.get("a"), "1");
  EXPECT_EQ(client.get("b"), std::nullopt);
  EXPECT_EQ(client.add("n", 5), 5);
  EXPECT_EQ(client.add("n", -2), 3);
  EXPECT_EQ(client.get("n"), "3");
  EXPECT_EQ(client.compare_set("c", "", "x"), "x");
  EXPECT_EQ(client.compare_set("c", "", "y"), "x");
  EXPECT_EQ(client.compare_set("c", "x", "y"), "y");
  EXPECT_EQ(client.compare_set("none", "x", "y"), "x");
  EXPECT_TRUE(client.has({"a", "n", "c"}));
  EXPECT_FALSE(client.has({"a", "b"}));
  EXPECT_EQ(client.count(), 3);
  EXPECT_TRUE(client.erase("a"));
  EXPECT_FALSE(client.erase("a"));
  EXPECT_FALSE(client.wait({"a"}, milliseconds(20)));
  const std::string bytes("\0\xff\n", 3);
  client.set(bytes, bytes);
  EXPECT_EQ(client.get(bytes), bytes);
  const std::string large(8 << 20, 'x');
  client.set("large", large);
  EXPECT_EQ(client.get("large"), large);
}

TEST(Store, AWaitEndsWithTheKeyAndHoldsUpNoOtherCall) {
  Served served;
  Client client(served.of(agent()));
  auto waits = std::async(std::launch::async,
                          [&] { return client.get("late", seconds(60)); });
  auto both = std::async(std::launch::async, [&] {
    return client.wait({"late", "later"}, seconds(60));
  });
  for (int i = 0; i < 100; ++i) client.set("other", std::to_string(i));
  EXPECT_EQ(waits.wait_for(milliseconds(0)), std::future_status::timeout);
  client.set("late", "now");
  EXPECT_EQ(waits.get(), "now");
  client.add("later", 1);
  EXPECT_TRUE(both.get());
}

// A client asks for short waits only, so this test is one itself.
TEST(Store, AnswersAWaitAsSoonAsTheKeyIsSet) {
  Served served;
  Client other(served.of(agent(1)));
  const Identity who = agent(2);
  SecurePeer peer(served.port(), who, served.secret().key_of(who));
  peer.send(encode(Hello{.identity = who}));
  ASSERT_TRUE(peer.receive());
  uint64_t id = 0;
  for (const auto& set : std::vector<std::function<void(std::string)>>{
           [&](const auto& key) { other.set(key, "1"); },
           [&](const auto& key) { other.add(key, 1); },
           [&](const auto& key) { other.compare_set(key, "", "1"); }}) {
    const std::string key = "key " + std::to_string(++id);
    peer.send(encode({.operation = Operation::kWait,
                      .id = id,
                      .keys = {key},
                      .wait_ms = 600'000}));
    set(key);
    const auto reply = peer.receive();
    ASSERT_TRUE(reply) << key;
    EXPECT_EQ(decode_reply(*reply, {}).status, Status::kDone);
  }
}

TEST(Store, TellsSeveralClientsTheSame) {
  Served served;
  served.server().begin_round(0, 4);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      Client client(served.of(worker(rank, 4)));
      for (int i = 0; i < 200; ++i) client.add("sum", 1);
      client.set("rank " + std::to_string(rank), "here");
      EXPECT_TRUE(
          client.wait({"rank 0", "rank 1", "rank 2", "rank 3"}, seconds(60)));
    });
  }
  for (auto& rank : ranks) rank.join();
  Client client(served.of(worker(0, 4)));
  EXPECT_EQ(client.get("sum"), "800");
}

TEST(Store, ServesNobodyWithAnotherSecret) {
  Served served, other;
  EXPECT_TRUE(is_error(error_of<CommError>([&] {
                         Client client(other.of(agent(), served.port()));
                       }),
                       ErrorCode::kBadSecret));
  // A worker can't name the keys of an agent, or of another rank or round.
  served.server().begin_round(0, 2);
  for (const Identity& who : {agent(), worker(1), worker(0, 2, 1)}) {
    auto options = served.of(who);
    options.key = served.secret().key_of(worker(0));
    EXPECT_TRUE(is_error(error_of<CommError>([&] { Client client(options); }),
                         ErrorCode::kBadSecret));
  }
  EXPECT_NO_THROW(Client(served.of(worker(0))));
}

// Returns why the store refuses a client that knows the secret.
Admission admission_of(const ClientOptions& options) {
  try {
    const Client client(options);
    return Admission::kWelcome;
  } catch (const Refused& refused) {
    return refused.admission();
  }
}

TEST(Store, RefusesWithAReasonWhoKnowsTheSecret) {
  Served served;
  EXPECT_EQ(admission_of(served.of(worker(0))), Admission::kStaleRound);
  served.server().begin_round(1, 2);
  EXPECT_EQ(admission_of(served.of(worker(0, 2, 0))), Admission::kStaleRound);
  EXPECT_EQ(admission_of(served.of(worker(0, 2, 2))), Admission::kStaleRound);
  EXPECT_EQ(admission_of(served.of(worker(0, 3, 1))),
            Admission::kWrongWorldSize);
  Identity other = agent();
  other.run_id = "other";
  EXPECT_EQ(admission_of(served.of(other)), Admission::kOtherJob);
  EXPECT_TRUE(
      is_error(error_of<Refused>([&] { Client client(served.of(other)); }),
               ErrorCode::kStoreRefused, {"'job'"}));
}

TEST(Store, LetsNobodyTakeARankThatIsConnected) {
  Served served;
  served.server().begin_round(0, 2);
  Identity hijacker = worker(0);
  hijacker.token = token_of(66);
  {
    Client first(served.of(worker(0)));
    EXPECT_EQ(admission_of(served.of(hijacker)), Admission::kDuplicateRank);
    // The same process may open another connection.
    EXPECT_EQ(admission_of(served.of(worker(0))), Admission::kWelcome);
    first.set("still", "here");
  }
  // The server sees its end as an event, so the place is free.
  EXPECT_EQ(admission_of(served.of(hijacker)), Admission::kWelcome);
}

TEST(Store, KeepsWorkersToKeysOfTheirRound) {
  Served served;
  Client master(served.of(agent(1)));
  master.begin_round(0, 2);
  master.set("left/1", "no");
  Client rank(served.of(worker(0)));
  EXPECT_EQ(rank.get("left/1"), std::nullopt);
  rank.set("left/1", "rogue");
  EXPECT_EQ(rank.erase("beat"), false);
  EXPECT_EQ(master.get("left/1"), "no");
  EXPECT_TRUE(
      is_error(error_of<RequestRefused>([&] { rank.begin_round(1, 2); }),
               ErrorCode::kStoreRefused, {worker(0).text()}));
  master.begin_round(1, 3);
  // The workers of the previous round are disconnected, and their keys are
  // gone.
  EXPECT_TRUE(is_error(error_of<Refused>([&] { rank.get("left/1"); }),
                       ErrorCode::kStoreRefused, {"round 1", "round 0"}));
  Client next(served.of(worker(0, 3, 1)));
  EXPECT_EQ(next.get("left/1"), std::nullopt);
  EXPECT_TRUE(is_error(
      error_of<RequestRefused>([&] { master.begin_round(1, 4); }),
      ErrorCode::kStoreRefused, {"round 1 of 3 ranks", "round 1 of 4 ranks"}));
  EXPECT_THROW(master.begin_round(0, 2), CommError);
}

TEST(Store, DoesTheWillOfAnAgentThatIsGone) {
  Served served;
  Client stays(served.of(agent(1)));
  stays.set("gone/1", "mine");
  {
    Client first(served.of(agent(2)));
    first.set_last_will("former", "1");
    first.set_last_will("gone/2", "why");
    EXPECT_THROW(first.set_last_will("gone/2", std::string(2000, 'x')),
                 RequestRefused);
    // A connection that closes is not the end of the agent.
    Client(served.of(agent(2))).get("x");
    Client thief(served.of(agent(3)));
    thief.set_last_will("gone/1", "stolen");
    EXPECT_EQ(stays.get("gone/2"), std::nullopt);
  }
  EXPECT_EQ(stays.get("gone/2", seconds(30)), "why");
  EXPECT_EQ(stays.get("former"), std::nullopt);
  EXPECT_EQ(stays.get("gone/1"), "mine");
  served.server().begin_round(0, 2);
  Client rank(served.of(worker(0)));
  EXPECT_TRUE(
      is_error(error_of<RequestRefused>([&] { rank.set_last_will("a", "b"); }),
               ErrorCode::kStoreRefused, {worker(0).text()}));
}

TEST(Store, LetsNoAgentSpeakForAnother) {
  Served served;
  Client first(served.of(agent(1))), second(served.of(agent(2)));
  first.set("beat/0", "1");
  first.set("beat/0", "2");
  EXPECT_EQ(first.compare_set("failed", "", "mine"), "mine");
  const auto belongs = [](auto act) {
    EXPECT_TRUE(
        is_error(error_of<RequestRefused>(act), ErrorCode::kStoreRefused));
  };
  belongs([&] { second.set("beat/0", "9"); });
  belongs([&] { second.erase("beat/0"); });
  belongs([&] { second.add("beat/0", 1); });
  EXPECT_EQ(second.compare_set("failed", "", "yours"), "mine");
  EXPECT_EQ(second.get("beat/0"), "2");
  EXPECT_EQ(second.add("done", 1) + first.add("done", 1), 3);
}

TEST(Store, IsFullAtItsLimits) {
  ServerOptions options;
  options.limits.keys = 2;
  options.limits.total_bytes = 100;
  Served served(options);
  Client client(served.of(agent()));
  const auto is_full = [&](const std::string& key, const std::string& value) {
    EXPECT_TRUE(
        is_error(error_of<RequestRefused>([&] { client.set(key, value); }),
                 ErrorCode::kStoreRefused, {"2 keys", "100 bytes"}));
  };
  is_full("a", std::string(100, 'x'));
  client.set("a", std::string(90, 'x'));
  is_full("b", std::string(10, 'x'));
  client.set("a", "less");
  client.set("b", std::string(10, 'x'));
  is_full("c", "");
  client.erase("a");
  client.set("c", "");
}

TEST(Store, CallsEndInTimeIfTheServerIsGone) {
  auto served = std::make_unique<Served>();
  auto options = served->of(agent());
  options.answer_time = milliseconds(200);
  Client client(options);
  served.reset();
  const Stopwatch watch;
  EXPECT_THROW(client.set("a", "b"), CommError);
  EXPECT_LT(watch.seconds(), 10);
}

}  // namespace
}  // namespace lockstep::store
