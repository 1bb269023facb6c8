#include "lockstep/launch/agent/peer_watch.h"

#include <poll.h>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/launch/agent/notice.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

PeerNews next_news(PeerWatch& watch) {
  pollfd ready{watch.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 30'000), 1) << "no news in time";
  return watch.take_news();
}

TEST(PeerWatch, TellsAFailure) {
  Pair pair;
  PeerWatch first(pair.agents[0], {.keep_alive_s = 30});
  PeerWatch second(pair.agents[1], {.keep_alive_s = 30});
  first.announce_end({.why = "rank 0 failed", .may_restart = true});
  const auto notice = next_news(second).notice.value_or(Notice());
  EXPECT_EQ(notice.why, "rank 0 failed");
  EXPECT_TRUE(notice.may_restart);
}

TEST(PeerWatch, TellsWhenAllAreDone) {
  Pair pair;
  PeerWatch first(pair.agents[0], {.keep_alive_s = 30});
  PeerWatch second(pair.agents[1], {.keep_alive_s = 30});
  first.announce_done();
  second.announce_done();
  EXPECT_TRUE(next_news(first).all_done);
  EXPECT_TRUE(next_news(second).all_done);
}

TEST(PeerWatch, FindsAnAgentThatSaysNothing) {
  Pair pair;
  PeerWatch alone(pair.agents[0], {.keep_alive_s = 0.5});
  const auto notice = next_news(alone).notice.value_or(Notice());
  const int silent = pair.agents[1].group.node_rank;
  EXPECT_EQ(notice.lost_node, silent);
  EXPECT_PRED2(contains, notice.why, "node " + std::to_string(silent));
  EXPECT_PRED2(contains, notice.why, "0.5 s");
}

TEST(PeerWatch, FindsAnAgentThatIsGoneAtOnce) {
  Pair pair;
  PeerWatch left(pair.agents[0], {.keep_alive_s = 30});
  const int other = pair.agents[1].group.node_rank;
  pair.agents[1].store.set(pair.agents[1].gone_key(other), "1");
  const auto notice = next_news(left).notice.value_or(Notice());
  EXPECT_PRED2(contains, notice.why, "node " + std::to_string(other));
  EXPECT_EQ(notice.lost_node, other);
}

TEST(PeerWatch, GoesOnAfterTheNetworkResetsItsConnections) {
  PairOverNetwork pair;
  PeerWatch first(pair.agents[0], {.keep_alive_s = 30});
  PeerWatch second(pair.agents[1], {.keep_alive_s = 30});
  for (int i = 0; i < 5; ++i) {
    pair.network->reset();
    pollfd ready{second.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 100), 0) << "there is no news";
  }
  first.announce_done();
  second.announce_done();
  for (PeerWatch* watch : {&first, &second}) {
    const PeerNews news = next_news(*watch);
    EXPECT_TRUE(news.all_done);
    EXPECT_FALSE(news.notice) << news.notice->why;
  }
}

TEST(PeerWatch, SaysThatTheJobCanContinueWhenTheNetworkIsLost) {
  PairOverNetwork pair;
  PeerWatch first(pair.agents[0], {.keep_alive_s = 1});
  PeerWatch second(pair.agents[1], {.keep_alive_s = 1});
  pair.network.reset();
  for (PeerWatch* watch : {&first, &second}) {
    const auto notice = next_news(*watch).notice.value_or(Notice());
    EXPECT_EQ(notice.exit_code, kExitPreempted) << notice.why;
    EXPECT_FALSE(notice.may_restart);
  }
}

}  // namespace
}  // namespace lockstep::launch
