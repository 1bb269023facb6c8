// A client whose connections break.
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/store/forwarder.h"
#include "tests/store/served.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Reconnect : public testing::Test {
 protected:
  static ServerOptions options() {
    ServerOptions options;
    options.end_time = milliseconds(50);
    return options;
  }

  Served served_{options()};
  Forwarder network_{served_.port()};
  Client other_{served_.of(agent(1))};
  Client client_{served_.of(agent(2), network_.port())};
};

TEST_F(Reconnect, ChangesCountOnceThoughTheirAnswersAreLost) {
  for (int i = 1; i <= 10; ++i) {
    network_.lose_answers(i % 3);
    EXPECT_EQ(client_.add("count", 1), i);
  }
  EXPECT_EQ(other_.get("count"), "10");
  network_.lose_answers(1);
  EXPECT_EQ(client_.compare_set("claimed", "", "mine"), "mine");
  network_.lose_answers(1);
  EXPECT_EQ(client_.compare_set("claimed", "mine", "still mine"), "still mine");
  network_.lose_answers(2);
  EXPECT_TRUE(client_.erase("claimed"));
  EXPECT_FALSE(client_.erase("claimed"));
}

TEST_F(Reconnect, ARepeatedRequestDoesNotUndoALaterOne) {
  served_.server().begin_round(0, 2);
  Client rank(served_.of(worker(0), network_.port()));
  Client another(served_.of(worker(1)));
  network_.lose_answers(1, [&] { another.set("shared", "later"); });
  rank.set("shared", "first");
  EXPECT_EQ(another.get("shared"), "later");
  network_.lose_answers(1, [&] { another.set("shared", "again"); });
  EXPECT_EQ(rank.compare_set("shared", "later", "mine"), "mine");
  EXPECT_EQ(another.get("shared"), "again");
}

TEST_F(Reconnect, ALinkThatDiesInSilenceIsReplaced) {
  network_.stall();
  EXPECT_EQ(client_.add("count", 1), 1);
  // Now the request that was held up arrives.
  network_.release();
  EXPECT_EQ(client_.add("count", 1), 2);
  EXPECT_EQ(other_.get("count"), "2");
}

TEST_F(Reconnect, AWaitGoesOnOverANewConnection) {
  auto waits = std::async(std::launch::async,
                          [&] { return client_.get("late", seconds(60)); });
  for (int i = 0; i < 5; ++i) {
    network_.reset();
    EXPECT_EQ(waits.wait_for(milliseconds(10)), std::future_status::timeout);
  }
  other_.set("late", "now");
  EXPECT_EQ(waits.get(), "now");
}

TEST_F(Reconnect, AnAgentWhoseConnectionWasResetIsNotGone) {
  client_.set_last_will("gone", "1");
  network_.reset();
  // The server notices a reset at once, and allows much more time for it.
  EXPECT_FALSE(other_.wait({"gone"}, milliseconds(500)));
  client_.set("here", "again");
  EXPECT_EQ(other_.get("gone"), std::nullopt);
}

TEST_F(Reconnect, AnAgentThatGetsNoAnswersIsNotGone) {
  client_.set_last_will("gone", "1");
  network_.hold_answers();
  auto sum =
      std::async(std::launch::async, [&] { return client_.add("count", 1); });
  // The client gives up its connection, and the next ones get no answer either.
  EXPECT_FALSE(other_.wait({"gone"}, seconds(4)));
  network_.release();
  EXPECT_EQ(sum.get(), 1);
  EXPECT_EQ(other_.get("gone"), std::nullopt);
}

TEST(LastWill, IsCarriedOutOnceAnAgentHadTimeToConnectAgain) {
  ServerOptions options;
  options.reconnect_time = milliseconds(100);
  options.end_time = seconds(600);
  Served served(options);
  Forwarder network(served.port());
  Client other(served.of(agent(1)));
  Client lost(served.of(agent(2), network.port()));
  lost.set_last_will("gone", "1");
  network.reset();
  EXPECT_TRUE(other.wait({"gone"}, seconds(60)));
  lost.set("here", "again");
  EXPECT_EQ(other.get("gone"), std::nullopt);
}

// A server that was started again at the same address, with the same secret.
TEST(Incarnation, OfAStoreEndsTheClientsOfTheOneBefore) {
  ServerOptions options;
  options.run_id = "job";
  int port = 0;
  auto server = std::make_unique<Server>(options, listen_at("127.0.0.1", port));
  ClientOptions client{.host = "127.0.0.1", .port = port, .who = agent(1)};
  client.key = options.secret.key_of(client.who);
  Client former(client);
  former.set("a", "1");
  const Token incarnation = former.incarnation();

  server.reset();
  server = std::make_unique<Server>(options, listen_at("127.0.0.1", port));
  const auto refused = [](auto act) {
    EXPECT_TRUE(is_error(error_of<Refused>(act), ErrorCode::kStoreRefused,
                         {"started again"}));
  };
  refused([&] { former.set("a", "2"); });
  Client present(client);
  EXPECT_EQ(present.get("a"), std::nullopt);
  EXPECT_NE(present.incarnation(), incarnation);
  // A worker learns the incarnation from its agent, before it connects.
  server->begin_round(0, 2);
  client.who = worker(0);
  client.who.incarnation = incarnation;
  client.key = options.secret.key_of(client.who);
  refused([&] { Client rank(client); });
  client.who.incarnation = present.incarnation();
  EXPECT_NO_THROW(Client rank(client));
}

TEST(Reconnects, EndInTime) {
  auto served = std::make_unique<Served>();
  auto options = served->of(agent());
  options.answer_time = milliseconds(300);
  Client client(options);
  served.reset();
  const Stopwatch watch;
  EXPECT_TRUE(is_error(error_of<Unreachable>([&] { client.set("a", "b"); }),
                       ErrorCode::kStoreUnreachable,
                       {"port " + std::to_string(options.port)}));
  EXPECT_GE(watch.seconds(), 0.3);
  EXPECT_LT(watch.seconds(), 30);
}

TEST(Requests, ThatTheServerCantReadAreNotSent) {
  Served served;
  Client client(served.of(agent()));
  EXPECT_THROW(client.set(std::string(100'000, 'k'), "v"), RequestRefused);
  EXPECT_EQ(client.add("still", 1), 1);
}

}  // namespace
}  // namespace lockstep::store
