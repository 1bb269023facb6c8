#include "lockstep/launch/rendezvous/master.h"

#include <future>
#include <string>

#include <gtest/gtest.h>

#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

TEST(Master, OfSeveralNodesIsWhereNode0SaysItIs) {
  const RunOptions options = two_nodes(free_endpoint());
  auto beside =
      std::async(std::launch::async, [&] { return meet(options, never_stop); });
  std::vector<Meeting> meetings;
  meetings.push_back(meet(options, never_stop));
  meetings.push_back(beside.get());
  auto other = std::async(std::launch::async, [&] {
    return begin_round(meetings[1], options, 0).text();
  });
  const auto own = begin_round(meetings[0], options, 0).text();
  EXPECT_EQ(own, other.get());
  EXPECT_NE(own, options.endpoint);
  EXPECT_TRUE(own.starts_with("127.0.0.1:")) << own;
}

}  // namespace
}  // namespace lockstep::launch
