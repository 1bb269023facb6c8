#include "lockstep/launch/rendezvous/master.h"

#include <future>
#include <string>

#include <gtest/gtest.h>

#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

TEST(Master, OfSeveralNodesIsWhereNode0SaysItIs) {
  const RunOptions options = two_nodes(free_endpoint());
  auto beside = std::async(
      std::launch::async, [&] { return join_rendezvous(options, never_stop); });
  std::vector<Rendezvous> agents;
  agents.push_back(join_rendezvous(options, never_stop));
  agents.push_back(beside.get());
  auto other = std::async(std::launch::async, [&] {
    return begin_round(agents[1], options, 0).text();
  });
  const auto own = begin_round(agents[0], options, 0).text();
  EXPECT_EQ(own, other.get());
  EXPECT_NE(own, options.endpoint);
  EXPECT_TRUE(own.starts_with("127.0.0.1:")) << own;
}

}  // namespace
}  // namespace lockstep::launch
