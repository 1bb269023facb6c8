#include "lockstep/launch/rendezvous/rendezvous.h"

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"
#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

TEST(Rendezvous, OfOneNodeTakesAFreePortOnLoopback) {
  const Rendezvous one = join_rendezvous({}, never_stop);
  const Rendezvous other = join_rendezvous({}, never_stop);
  EXPECT_NE(one.store.endpoint().port, other.store.endpoint().port);
  EXPECT_EQ(one.store.endpoint().host, "127.0.0.1");
  EXPECT_EQ(one.group.world_size(), 1);
  // This machine does not listen on its other loopback addresses.
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
  const auto text =
      error_of<LaunchError>([&] { join_rendezvous(options, never_stop); });
  EXPECT_TRUE(is_error(text, ErrorCode::kCannotListen,
                       {endpoint.text(), "--master-port"}));
}

TEST(Rendezvous, CountsRanksOverUnequalNodesAndRoles) {
  auto options = two_nodes(free_endpoint());
  options.node_rank = 1;
  options.workers = 3;
  options.role = "server";
  auto later = join_beside(options);
  options.node_rank = 0;
  options.workers = 2;
  options.role = "trainer";
  const Rendezvous first = join_rendezvous(options, never_stop);
  const Rendezvous second = later.get();
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
  auto any = join_beside(options);
  options.node_rank = 0;
  const Rendezvous zero = join_rendezvous(options, never_stop);
  EXPECT_EQ(zero.group.node_rank, 0);
  EXPECT_EQ(any.get().group.node_rank, 1);
}

TEST(Rendezvous, OfNodesThatComeAndGoTakesThemAttemptByAttempt) {
  auto options = two_nodes(free_endpoint());
  options.min_nodes = 1;
  options.last_call_s = 0.1;
  Rendezvous first = join_rendezvous(options, never_stop);
  EXPECT_EQ(first.group.world_size(), 1);

  auto late = join_beside(options);
  while (count_members(first.store) < 2) std::this_thread::yield();
  next_rendezvous(first, options, {0}, 1, never_stop);
  EXPECT_EQ(first.group.world_size(), 2);
  EXPECT_EQ(first.group.node_rank, 0);
  const Rendezvous second = late.get();
  EXPECT_EQ(second.attempt, 1);
  EXPECT_EQ(second.group.node_rank, 1);

  // It leaves, and is not counted as a new arrival.
  next_rendezvous(first, options, {0}, 2, never_stop);
  EXPECT_EQ(first.group.world_size(), 1);
}

TEST(Rendezvous, OfNodesThatComeAndGoNeedsTheFewest) {
  auto options = two_nodes(free_endpoint());
  options.nodes = 3;
  options.min_nodes = 2;
  options.join_timeout_s = 0.3;
  const auto text =
      error_of<LaunchError>([&] { join_rendezvous(options, never_stop); });
  EXPECT_TRUE(is_error(text, ErrorCode::kRendezvousFailed,
                       {"2 to 3 nodes", "--nnodes", "join_timeout"}));
}

// Returns the message when two agents try to meet and one of them is refused.
// The other one then stops waiting.
std::string refusal(const RunOptions& one, const RunOptions& other) {
  struct Enough {};
  std::atomic<bool> is_refused = false;
  const auto attempt = [&](const RunOptions& options) -> std::string {
    try {
      join_rendezvous(options, [&] {
        if (is_refused) throw Enough{};
      });
    } catch (const LaunchError& error) {
      is_refused = true;
      // The store may end together with the agent that was refused.
      const bool has_lost_store = error.code() == ErrorCode::kStoreUnreachable;
      return has_lost_store ? "" : error.what();
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
  EXPECT_TRUE(is_error(text, ErrorCode::kRendezvousFailed,
                       {"node 1", "alpha (agent ", "beta (agent "}));
}

TEST(Rendezvous, RefusesAnotherNumberOfNodesOnBothSides) {
  auto options = two_nodes(free_endpoint());
  options.local_addr = "alpha";
  auto first = join_beside(options);
  options.nodes = 3;
  options.local_addr = "beta";
  auto second = join_beside(options);
  for (auto* future : {&first, &second}) {
    const auto text = error_of<LaunchError>([&] { future->get(); });
    EXPECT_TRUE(is_error(text, ErrorCode::kRendezvousFailed,
                         {"--nnodes", "alpha", "beta"}));
  }
}

TEST(Rendezvous, RefusesAnotherJob) {
  auto one = two_nodes(free_endpoint());
  one.run_id = "mine";
  auto other = one;
  other.run_id = "yours";
  const auto text = refusal(one, other);
  EXPECT_TRUE(is_error(text, ErrorCode::kStoreRefused,
                       {one.endpoint, "'mine'", "'yours'", "--rdzv-id"}));
}

TEST(Rendezvous, DoesNotWaitForEverForANode) {
  auto options = two_nodes(free_endpoint());
  options.join_timeout_s = 0.5;
  const auto text =
      error_of<LaunchError>([&] { join_rendezvous(options, never_stop); });
  EXPECT_TRUE(is_error(text, ErrorCode::kRendezvousFailed,
                       {"2 nodes", host_name(), "--nnodes", "join_timeout"}));
}

TEST(Rendezvous, StopsWhenAsked) {
  struct Asked {};
  EXPECT_THROW(
      join_rendezvous(two_nodes(free_endpoint()), [] { throw Asked{}; }),
      Asked);
}

TEST(Rendezvous, NeedsAPortForSeveralNodes) {
  RunOptions options;
  options.nodes = 2;
  EXPECT_TRUE(is_error(
      error_of<LaunchError>([&] { join_rendezvous(options, never_stop); }),
      ErrorCode::kBadOption, {"--master-addr", "--master-port"}));
}

TEST(Master, OfSeveralNodesIsWhereNode0SaysItIs) {
  Pair pair;
  auto other = std::async(std::launch::async, [&] {
    return begin_round(pair.agents[1], pair.options, 0).text();
  });
  const auto own = begin_round(pair.agents[0], pair.options, 0).text();
  EXPECT_EQ(own, other.get());
  EXPECT_NE(own, pair.options.endpoint);
  EXPECT_TRUE(own.starts_with("127.0.0.1:")) << own;
}

TEST(JobStore, ThatIsLostIsAskedNoMore) {
  auto pair = std::make_optional<Pair>();
  const size_t joiner = pair->agents[0].serves_store ? 1 : 0;
  JobStore store(std::move(pair->agents[joiner].store));
  pair.reset();
  const auto why = [&] {
    return error_of<LaunchError>([&] { store.get("x"); });
  };
  const std::string first = why();
  const std::string later = why();
  for (const std::string& text : {first, later}) {
    EXPECT_TRUE(is_error(text, ErrorCode::kStoreUnreachable,
                         {store.endpoint().text()}));
  }
  EXPECT_NE(first, later) << "it was asked again";
}

}  // namespace
}  // namespace lockstep::launch
