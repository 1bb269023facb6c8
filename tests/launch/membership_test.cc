#include "lockstep/launch/membership.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

const CheckStop kNeverStop = [] {};

// The store of a job, and members that come to it.
class Membership : public testing::Test {
 protected:
  static RunOptions fixed(int nodes) {
    RunOptions options;
    options.nodes = nodes;
    options.backend = Backend::kC10d;
    options.join_timeout_s = 0.3;
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

  // Who is in an attempt, in the order of node rank.
  static std::string hosts_of(const std::vector<Node>& nodes) {
    std::string hosts;
    for (const Node& node : nodes) hosts += node.host;
    return hosts;
  }

  Endpoint endpoint_{"127.0.0.1", 0};
  std::vector<FileDescriptor> listeners_ = listen_at(endpoint_);
  JobStore store_{{.run_id = "job", .secret = store::JobSecret::random()},
                  endpoint_,
                  std::move(listeners_)};
};

TEST_F(Membership, GivesRanksAsTheyAreWantedThenByArrival) {
  const RunOptions options = fixed(4);
  const Node self = come("a", options);
  come("b", options, 0);
  come("c", options);
  come("d", options, 2);
  Muster first{.nodes = {self}};
  muster(store_, options, first, kNeverStop);
  EXPECT_EQ(hosts_of(first.nodes), "badc");
  const Group group = read_group(store_, options, self, 0, kNeverStop);
  EXPECT_EQ(group.node_rank, 1);
  EXPECT_EQ(hosts_of(group.nodes), "badc");
}

TEST_F(Membership, TakesAnotherForOneThatIsGone) {
  const RunOptions options = fixed(3);
  const Node self = come("a", options);
  const Node lost = come("b", options);
  come("c", options);
  go(lost);
  Muster first{.nodes = {self}};
  EXPECT_PRED2(contains, error_of<LaunchError>([&] {
                 muster(store_, options, first, kNeverStop);
               }),
               "too few nodes came; expected 3 nodes, got 2: a (agent 1), c");
  come("d", options);
  muster(store_, options, first, kNeverStop);
  EXPECT_EQ(hosts_of(first.nodes), "acd");
}

TEST_F(Membership, OfACompleteJobTakesNoOther) {
  const RunOptions options = fixed(2);
  const Node self = come("a", options);
  come("b", options);
  const Node late = come("c", options);
  Muster first{.nodes = {self}};
  muster(store_, options, first, kNeverStop);
  EXPECT_EQ(hosts_of(first.nodes), "ab");
  EXPECT_PRED2(contains, error_of<LaunchError>([&] {
                 wait_for_group(store_, options, late, kNeverStop);
               }),
               "is complete; expected 2 nodes, got one more: c");
}

TEST_F(Membership, WhereNodesComeAndGoKeepsThoseThatStay) {
  const RunOptions options = elastic(1, 3);
  const Node self = come("a", options, 2);
  Muster now{.nodes = {self}};
  muster(store_, options, now, kNeverStop);
  EXPECT_EQ(hosts_of(now.nodes), "a") << "numbers come and go";

  const Node second = come("b", options);
  come("c", options);
  const Node waits = come("d", options);
  now.attempt = 1;
  muster(store_, options, now, kNeverStop);
  EXPECT_EQ(hosts_of(now.nodes), "abc");

  // One is lost, and there is room for the one that waited.
  go(second);
  now.attempt = 2;
  muster(store_, options, now, kNeverStop);
  EXPECT_EQ(hosts_of(now.nodes), "acd");
  EXPECT_EQ(now.known, 4);
  EXPECT_EQ(wait_for_group(store_, options, waits, kNeverStop), 2);
  EXPECT_PRED2(contains, error_of<LaunchError>([&] {
                 read_group(store_, options, second, 2, kNeverStop);
               }),
               "the job went on without this node");
}

TEST_F(Membership, IsToldWhyThereWillBeNoJob) {
  const RunOptions options = fixed(2);
  const Node self = come("a", options);
  const Node other = come("b", options);
  refuse_job(store_, "the nodes don't agree");
  EXPECT_PRED2(contains, error_of<LaunchError>([&] {
                 wait_for_group(store_, options, other, kNeverStop);
               }),
               "a node was refused: the nodes don't agree");
}

TEST_F(Membership, HasNoRankBeyondItsNodes) {
  EXPECT_PRED2(contains,
               error_of<InvalidArgument>([&] { come("a", fixed(2), 2); }),
               "can't use --node-rank; expected 0 to 1 with --nnodes 2, got 2");
}

}  // namespace
}  // namespace lockstep::launch
