#include "lockstep/launch/rendezvous/membership.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/store/client.h"
#include "lockstep/store/server.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

const CheckStop kNeverStop = [] {};

// The store of a job, and members that join it.
class Membership : public testing::Test {
 protected:
  static RunOptions fixed(int nodes) {
    RunOptions options;
    options.nodes = nodes;
    options.backend = Backend::kC10d;
    return options;
  }
  static RunOptions elastic(int least, int most) {
    RunOptions options = fixed(most);
    options.min_nodes = least;
    options.last_call_s = 0;
    return options;
  }

  Node come(const std::string& host, RunOptions options, int rank = -1) {
    if (rank >= 0) options.node_rank = rank;
    Node node{.host = host, .pid = 1, .workers = 1, .role = "r"};
    register_member(store_, options, node);
    return node;
  }
  void go(const Node& node) { store_.set(gone_key(node.member), "1"); }

  // Returns the hosts in an attempt, in the order of node rank.
  static std::string hosts_of(const std::vector<Node>& nodes) {
    std::string hosts;
    for (const Node& node : nodes) hosts += node.host;
    return hosts;
  }

  const Deadline shortly_{0.3, kNeverStop};
  Endpoint endpoint_{"127.0.0.1", 0};
  std::vector<FileDescriptor> listeners_ = listen_at(endpoint_);
  JobStore store_{{.run_id = "job",
                   .secret = store::JobSecret::random(),
                   .keep_alive_s = 1},
                  endpoint_,
                  std::move(listeners_)};
};

TEST_F(Membership, GivesRanksAsTheyAreWantedThenByArrival) {
  const RunOptions options = fixed(4);
  const Node self = come("a", options);
  come("b", options, 0);
  come("c", options);
  come("d", options, 2);
  Participants first{.nodes = {self}};
  form_group(store_, options, first, shortly_);
  EXPECT_EQ(hosts_of(first.nodes), "badc");
  const Group group = read_group(store_, options, self, 0, shortly_);
  EXPECT_EQ(group.node_rank, 1);
  EXPECT_EQ(hosts_of(group.nodes), "badc");
}

TEST_F(Membership, TakesAnotherForOneThatIsGone) {
  const RunOptions options = fixed(3);
  const Node self = come("a", options);
  const Node lost = come("b", options);
  come("c", options);
  go(lost);
  Participants first{.nodes = {self}};
  EXPECT_TRUE(is_error(error_of<LaunchError>([&] {
                         form_group(store_, options, first, shortly_);
                       }),
                       ErrorCode::kRendezvousFailed,
                       {"a (agent 1), c (agent 1)"}));
  come("d", options);
  form_group(store_, options, first, shortly_);
  EXPECT_EQ(hosts_of(first.nodes), "acd");
}

TEST_F(Membership, GivesARankAgainIfItsNodeIsGone) {
  const RunOptions options = fixed(2);
  const Node self = come("a", options, 0);
  const Node lost = come("b", options, 1);
  EXPECT_TRUE(
      is_error(error_of<LaunchError>([&] { come("c", options, 1); }),
               ErrorCode::kRendezvousFailed,
               {"node 1", "b (agent 1)", "c (agent 1)", "--node-rank"}));
  go(lost);
  go({.member = 2});
  come("d", options, 1);
  Participants first{.nodes = {self}};
  form_group(store_, options, first, shortly_);
  EXPECT_EQ(hosts_of(first.nodes), "ad");
}

TEST_F(Membership, DoesNotWaitForOneThatNeverSaidAWord) {
  const RunOptions options = elastic(1, 3);
  const Node self = come("a", options);
  store_.add(kMembersKey, 1);
  come("c", options);
  Participants first{.nodes = {self}};
  form_group(store_, options, first, shortly_);
  EXPECT_EQ(hosts_of(first.nodes), "ac");
  EXPECT_EQ(first.known, count_members(store_));
}

TEST_F(Membership, OfACompleteJobTakesNoOther) {
  const RunOptions options = fixed(2);
  const Node self = come("a", options);
  come("b", options);
  const Node late = come("c", options);
  Participants first{.nodes = {self}};
  form_group(store_, options, first, shortly_);
  EXPECT_EQ(hosts_of(first.nodes), "ab");
  EXPECT_TRUE(
      is_error(error_of<LaunchError>(
                   [&] { wait_for_group(store_, options, late, shortly_); }),
               ErrorCode::kRendezvousFailed,
               {"'" + options.run_id + "'", "c (agent 1)", "--rdzv-id"}));
}

TEST_F(Membership, WhereNodesComeAndGoKeepsThoseThatStay) {
  const RunOptions options = elastic(1, 3);
  const Node self = come("a", options, 2);
  Participants now{.nodes = {self}};
  form_group(store_, options, now, shortly_);
  EXPECT_EQ(hosts_of(now.nodes), "a") << "numbers come and go";

  const Node second = come("b", options);
  come("c", options);
  const Node waits = come("d", options);
  now.attempt = 1;
  form_group(store_, options, now, shortly_);
  EXPECT_EQ(hosts_of(now.nodes), "abc");

  // A node is lost, so there is room for the one that waited.
  std::erase_if(now.nodes, [](const Node& node) { return node.host == "b"; });
  now.attempt = 2;
  form_group(store_, options, now, shortly_);
  EXPECT_EQ(hosts_of(now.nodes), "acd");
  EXPECT_EQ(now.known, 4);
  EXPECT_EQ(wait_for_group(store_, options, waits, shortly_), 2);
  EXPECT_TRUE(is_error(error_of<LaunchError>([&] {
                         read_group(store_, options, second, 2, shortly_);
                       }),
                       ErrorCode::kRendezvousFailed));
}

TEST_F(Membership, IsToldWhyThereWillBeNoJob) {
  const RunOptions options = fixed(2);
  const Node self = come("a", options);
  const Node other = come("b", options);
  refuse_job(store_, "the nodes don't agree");
  EXPECT_TRUE(is_error(error_of<LaunchError>([&] {
                         wait_for_group(store_, options, other, shortly_);
                       }),
                       ErrorCode::kRendezvousFailed,
                       {"the nodes don't agree"}));
}

TEST_F(Membership, HasNoRankBeyondItsNodes) {
  EXPECT_TRUE(
      is_error(error_of<InvalidArgument>([&] { come("a", fixed(2), 2); }),
               ErrorCode::kBadOption, {"--node-rank", "--nnodes 2"}));
}

TEST(AMember, IsGoneOnceItsAgentHasEnded) {
  Endpoint endpoint{"127.0.0.1", 0};
  auto listeners = listen_at(endpoint);
  const store::ServerOptions options{.run_id = "job"};
  const store::Server server(options, std::move(listeners));
  // Acts as another process, because all connections of a process are one
  // agent.
  store::Identity other{.role = store::Role::kAgent, .run_id = "job"};
  other.token.fill(9);
  store::Client watcher({.host = endpoint.host,
                         .port = endpoint.port,
                         .who = other,
                         .key = options.secret.key_of(other)});

  auto store = std::make_optional<JobStore>(
      JobStoreOptions{.run_id = "job", .secret = options.secret}, endpoint);
  Node node{.host = "a", .pid = 1, .workers = 1, .role = "r"};
  register_member(*store, {}, node);
  EXPECT_FALSE(watcher.has({gone_key(node.member)}));
  store.reset();
  EXPECT_TRUE(watcher.wait({gone_key(node.member)}, std::chrono::seconds(20)));
  // The agent comes back, as after its connections broke.
  store.emplace(JobStoreOptions{.run_id = "job", .secret = options.secret},
                endpoint);
  EXPECT_FALSE(watcher.has({gone_key(node.member)}));
}

}  // namespace
}  // namespace lockstep::launch
