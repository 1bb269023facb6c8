#include "lockstep/launch/rendezvous.h"

#include <atomic>
#include <future>
#include <poll.h>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/farewell.h"
#include "lockstep/launch/membership.h"
#include "lockstep/launch/peer_watch.h"
#include "lockstep/launch/worker_environment.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch::rendezvous_test {
namespace {

void never_stop() {}

// A port that was free a moment ago; c10d's agents agree on who has it.
std::string free_endpoint() {
  Endpoint endpoint{"127.0.0.1", 0};
  const auto socket = listen_at(endpoint);
  return endpoint.text();
}

RunOptions two_nodes(const std::string& endpoint) {
  RunOptions options;
  options.nodes = 2;
  options.backend = Backend::kC10d;
  options.endpoint = endpoint;
  options.join_timeout_s = 60;
  return options;
}

std::future<Meeting> meet_beside(const RunOptions& options) {
  return std::async(std::launch::async,
                    [options] { return meet(options, never_stop); });
}

TEST(Rendezvous, OfOneNodeTakesAFreePortOnLoopback) {
  const Meeting one = meet({}, never_stop);
  const Meeting other = meet({}, never_stop);
  EXPECT_NE(one.store.endpoint().port, other.store.endpoint().port);
  EXPECT_EQ(one.store.endpoint().host, "127.0.0.1");
  EXPECT_EQ(one.group.world_size(), 1);
  // Another loopback address of this machine does not reach it.
  Endpoint elsewhere = one.store.endpoint();
  EXPECT_TRUE(is_reachable(elsewhere, 1000));
  elsewhere.host = "127.0.0.2";
  EXPECT_FALSE(is_reachable(elsewhere, 1000));
}

TEST(Rendezvous, SaysThatThePortIsInUse) {
  Endpoint endpoint{"127.0.0.1", 0};
  const auto taken = listen_at(endpoint);
  RunOptions options;
  options.master_port = endpoint.port;
  const auto text = error_of<LaunchError>([&] { meet(options, never_stop); });
  EXPECT_PRED2(contains, text, endpoint.text() + " is in use");
}

TEST(Rendezvous, CountsRanksOverUnequalNodesAndRoles) {
  auto options = two_nodes(free_endpoint());
  options.node_rank = 1;
  options.workers = 3;
  options.role = "server";
  auto later = meet_beside(options);
  options.node_rank = 0;
  options.workers = 2;
  options.role = "trainer";
  const Meeting first = meet(options, never_stop);
  const Meeting second = later.get();
  EXPECT_EQ(first.group.node_rank, 0);
  EXPECT_EQ(second.group.node_rank, 1);
  EXPECT_EQ(first.group.world_size(), 5);
  EXPECT_EQ(first.group.first_rank(), 0);
  EXPECT_EQ(second.group.first_rank(), 2);
  EXPECT_EQ(second.group.role_world_size(), 3);
  EXPECT_EQ(second.group.first_role_rank(), 0);
  EXPECT_NE(first.serves_store, second.serves_store);
}

TEST(Rendezvous, GivesFreeRanksToThoseWithoutOne) {
  auto options = two_nodes(free_endpoint());
  auto any = meet_beside(options);
  options.node_rank = 0;
  const Meeting zero = meet(options, never_stop);
  EXPECT_EQ(zero.group.node_rank, 0);
  EXPECT_EQ(any.get().group.node_rank, 1);
}

TEST(Rendezvous, OfNodesThatComeAndGoTakesThemAttemptByAttempt) {
  auto options = two_nodes(free_endpoint());
  options.min_nodes = 1;
  options.last_call_s = 0.1;
  Meeting first = meet(options, never_stop);
  EXPECT_EQ(first.group.world_size(), 1);

  auto late = meet_beside(options);
  while (count_members(first.store) < 2) std::this_thread::yield();
  meet_again(first, options, {0}, 1, never_stop);
  EXPECT_EQ(first.group.world_size(), 2);
  EXPECT_EQ(first.group.node_rank, 0);
  const Meeting second = late.get();
  EXPECT_EQ(second.attempt, 1);
  EXPECT_EQ(second.group.node_rank, 1);

  // It leaves, and is not counted as one that has just come.
  meet_again(first, options, {0}, 2, never_stop);
  EXPECT_EQ(first.group.world_size(), 1);
}

TEST(Rendezvous, OfNodesThatComeAndGoNeedsTheFewest) {
  auto options = two_nodes(free_endpoint());
  options.nodes = 3;
  options.min_nodes = 2;
  options.join_timeout_s = 0.3;
  const auto text = error_of<LaunchError>([&] { meet(options, never_stop); });
  EXPECT_PRED2(contains, text, "too few nodes came; expected 2 to 3 nodes");
}

// What is said when two agents try to meet and one is refused. The other one
// then stops waiting.
std::string refusal(const RunOptions& one, const RunOptions& other) {
  struct Enough {};
  std::atomic<bool> is_refused = false;
  const auto attempt = [&](const RunOptions& options) -> std::string {
    try {
      meet(options, [&] {
        if (is_refused) throw Enough{};
      });
    } catch (const LaunchError& error) {
      is_refused = true;
      return error.what();
    } catch (const Enough&) {
    }
    return "";
  };
  auto beside = std::async(std::launch::async, attempt, other);
  const auto text = attempt(one);
  return text + beside.get();
}

TEST(Rendezvous, RefusesADuplicateNodeRankAndNamesBoth) {
  auto one = two_nodes(free_endpoint());
  one.node_rank = 1;
  one.local_addr = "alpha";
  auto other = one;
  other.local_addr = "beta";
  const auto text = refusal(one, other);
  EXPECT_PRED2(contains, text, "two agents say they are node 1");
  EXPECT_PRED2(contains, text, "alpha (agent ");
  EXPECT_PRED2(contains, text, "beta (agent ");
}

TEST(Rendezvous, RefusesAnotherNumberOfNodesOnBothSides) {
  auto options = two_nodes(free_endpoint());
  options.local_addr = "alpha";
  auto first = meet_beside(options);
  options.nodes = 3;
  options.local_addr = "beta";
  auto second = meet_beside(options);
  for (auto* future : {&first, &second}) {
    const auto text = error_of<LaunchError>([&] { future->get(); });
    EXPECT_PRED2(contains, text, "don't agree on --nnodes");
    EXPECT_PRED2(contains, text, "alpha");
    EXPECT_PRED2(contains, text, "beta");
  }
}

TEST(Rendezvous, RefusesAnotherJob) {
  auto one = two_nodes(free_endpoint());
  one.run_id = "mine";
  auto other = one;
  other.run_id = "yours";
  const auto text = refusal(one, other);
  EXPECT_PRED2(contains, text, "another job is at ");
  EXPECT_PRED2(contains, text, "'mine'");
  EXPECT_PRED2(contains, text, "'yours'");
}

TEST(Rendezvous, DoesNotWaitForEverForANode) {
  auto options = two_nodes(free_endpoint());
  options.join_timeout_s = 0.5;
  const auto text = error_of<LaunchError>([&] { meet(options, never_stop); });
  EXPECT_PRED2(contains, text, "too few nodes came");
  EXPECT_PRED2(contains, text, "expected 2 nodes, got 1: ");
  EXPECT_PRED2(contains, text, "join_timeout");
}

TEST(Rendezvous, StopsWhenAsked) {
  struct Asked {};
  EXPECT_THROW(meet(two_nodes(free_endpoint()), [] { throw Asked{}; }), Asked);
}

TEST(Rendezvous, NeedsAPortForSeveralNodes) {
  RunOptions options;
  options.nodes = 2;
  EXPECT_PRED2(contains,
               error_of<LaunchError>([&] { meet(options, never_stop); }),
               "--master-port");
}

// Two agents that have met, in this process.
struct Pair {
  Pair() {
    const auto options = two_nodes(free_endpoint());
    auto beside = meet_beside(options);
    meetings.push_back(meet(options, never_stop));
    meetings.push_back(beside.get());
  }
  std::vector<Meeting> meetings;
};

PeerNews next_news(PeerWatch& watch) {
  pollfd ready{watch.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 30'000), 1) << "no news in time";
  return watch.take_news();
}

TEST(PeerWatch, TellsAFailure) {
  Pair pair;
  PeerWatch first(pair.meetings[0], {.keep_alive_s = 30});
  PeerWatch second(pair.meetings[1], {.keep_alive_s = 30});
  first.tell({.why = "rank 0 failed", .may_restart = true});
  const auto notice = next_news(second).notice.value_or(Notice());
  EXPECT_EQ(notice.why, "rank 0 failed");
  EXPECT_TRUE(notice.may_restart);
}

TEST(PeerWatch, TellsWhenAllAreDone) {
  Pair pair;
  PeerWatch first(pair.meetings[0], {.keep_alive_s = 30});
  PeerWatch second(pair.meetings[1], {.keep_alive_s = 30});
  first.tell_done();
  second.tell_done();
  EXPECT_TRUE(next_news(first).all_done);
  EXPECT_TRUE(next_news(second).all_done);
}

TEST(PeerWatch, FindsAnAgentThatSaysNothing) {
  Pair pair;
  PeerWatch alone(pair.meetings[0], {.keep_alive_s = 0.5});
  EXPECT_PRED2(contains, next_news(alone).notice.value_or(Notice()).why,
               "said nothing for 0.5 s");
}

TEST(PeerWatch, FindsAnAgentThatIsGoneAtOnce) {
  Pair pair;
  PeerWatch left(pair.meetings[0], {.keep_alive_s = 30});
  const int other = pair.meetings[1].group.node_rank;
  pair.meetings[1].store.set(pair.meetings[1].gone_key(other), "1");
  const auto notice = next_news(left).notice.value_or(Notice());
  EXPECT_PRED2(contains, notice.why, "has ended without a word");
  EXPECT_EQ(notice.lost_node, other);
}

TEST(Farewell, GivesAllAgentsAllFailures) {
  Pair pair;
  Failure failure;
  failure.rank = 1;
  failure.host = "beta";
  const Notice first{.why = "it failed", .may_restart = true};
  pair.meetings[0].store.claim("failed", to_text(first));
  auto beside = std::async(std::launch::async, [&] {
    const auto all =
        share_failures(pair.meetings[1], {.why = "late"}, {failure}, 30);
    leave(pair.meetings[1]);
    return all;
  });
  const auto all = share_failures(pair.meetings[0], first, {}, 30);
  leave(pair.meetings[0]);
  ASSERT_EQ(all.failures.size(), 1u);
  EXPECT_EQ(all.failures[0].host, "beta");
  EXPECT_TRUE(all.is_complete);
  const auto others = beside.get();
  EXPECT_EQ(others.failures.size(), 1u);
  EXPECT_EQ(others.notice.why, "it failed");
  EXPECT_TRUE(others.notice.may_restart);
}

TEST(Farewell, SaysWhoWasNotHeard) {
  Pair pair;
  EXPECT_FALSE(
      share_failures(pair.meetings[0], {.why = "x"}, {}, 0.1).is_complete);
}

TEST(Farewell, WaitsForNoNodeThatIsLost) {
  constexpr double kTooLongS = 200;
  Pair silent;
  const Notice lost{.why = "x",
                    .lost_node = silent.meetings[1].group.node_rank};
  const Stopwatch watch;
  EXPECT_FALSE(
      share_failures(silent.meetings[0], lost, {}, kTooLongS).is_complete);
  Pair gone;
  const int node = gone.meetings[1].group.node_rank;
  gone.meetings[1].store.set(gone.meetings[1].gone_key(node), "1");
  EXPECT_FALSE(share_failures(gone.meetings[0], {.why = "x"}, {}, kTooLongS)
                   .is_complete);
  EXPECT_LT(watch.seconds(), kTooLongS);
}

TEST(JobStore, ThatIsLostIsAskedNoMore) {
  auto pair = std::make_optional<Pair>();
  const size_t joiner = pair->meetings[0].serves_store ? 1 : 0;
  JobStore store(std::move(pair->meetings[joiner].store));
  pair.reset();
  const auto why = [&] {
    return error_of<LaunchError>([&] { store.get("x"); });
  };
  EXPECT_PRED2(contains, why(), "lost the job's store");
  EXPECT_PRED2(contains, why(), "it was lost before");
}

TEST(Notice, OfAnotherKindIsAReasonInPlainWords) {
  EXPECT_EQ(notice_from_text("not JSON\n\x1b[2J").why.find('\x1b'),
            std::string::npos);
  for (const char* text : {"[]", "{", "{\"why\": 3}", "null", ""}) {
    EXPECT_FALSE(notice_from_text(text).may_restart) << text;
  }
  EXPECT_FALSE(
      notice_from_text(R"({"why": "x", "may_restart": "yes"})").may_restart);
}

TEST(WorkerEnvironment, LeavesTheUsersThreadsAlone) {
  const Group group{.node_rank = 0, .nodes = {{.host = "h", .role = "r"}}};
  const auto threads = [&](const RunOptions& options) {
    auto variables = worker_variables(options, group, {"127.0.0.1", 1}, 0, 0, 3,
                                      "error.json");
    return variables.contains("OMP_NUM_THREADS") ? variables["OMP_NUM_THREADS"]
                                                 : "inherited";
  };
  ::unsetenv("OMP_NUM_THREADS");
  RunOptions options;
  EXPECT_EQ(threads(options), "3");
  ::setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(threads(options), "inherited");
  options.omp_threads = 2;
  EXPECT_EQ(threads(options), "2");
  ::unsetenv("OMP_NUM_THREADS");
  options.omp_threads = 0;
  options.environment["OMP_NUM_THREADS"] = "5";
  EXPECT_EQ(threads(options), "5");
}

}  // namespace
}  // namespace lockstep::launch::rendezvous_test
