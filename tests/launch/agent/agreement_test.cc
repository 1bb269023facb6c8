#include "lockstep/launch/agent/agreement.h"

#include <future>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/stopwatch.h"
#include "tests/launch/two_agents.h"

namespace lockstep::launch {
namespace {

TEST(Farewell, GivesAllAgentsAllFailures) {
  Pair pair;
  Failure failure;
  failure.rank = 1;
  failure.host = "beta";
  const Notice first{.why = "it failed", .may_restart = true, .exit_code = 141};
  pair.agents[0].store.claim("failed", to_text(first));
  auto beside = std::async(std::launch::async, [&] {
    const auto all =
        share_failures(pair.agents[1], {.why = "late"}, {failure}, 30);
    leave(pair.agents[1]);
    return all;
  });
  const auto all = share_failures(pair.agents[0], first, {}, 30);
  leave(pair.agents[0]);
  ASSERT_EQ(all.failures.size(), 1u);
  EXPECT_EQ(all.failures[0].host, "beta");
  EXPECT_TRUE(all.is_complete);
  const auto others = beside.get();
  EXPECT_EQ(others.failures.size(), 1u);
  EXPECT_EQ(others.notice.why, "it failed");
  EXPECT_TRUE(others.notice.may_restart);
  EXPECT_EQ(others.notice.exit_code, 141);
}

TEST(Farewell, SaysWhoWasNotHeard) {
  Pair pair;
  EXPECT_FALSE(
      share_failures(pair.agents[0], {.why = "x"}, {}, 0.1).is_complete);
}

TEST(Farewell, WaitsForNoNodeThatIsLost) {
  constexpr double kTooLongS = 200;
  Pair silent;
  const Notice lost{.why = "x", .lost_node = silent.agents[1].group.node_rank};
  const Stopwatch watch;
  EXPECT_FALSE(
      share_failures(silent.agents[0], lost, {}, kTooLongS).is_complete);
  Pair gone;
  const int node = gone.agents[1].group.node_rank;
  gone.agents[1].store.set(gone.agents[1].gone_key(node), "1");
  EXPECT_FALSE(
      share_failures(gone.agents[0], {.why = "x"}, {}, kTooLongS).is_complete);
  EXPECT_LT(watch.seconds(), kTooLongS);
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

}  // namespace
}  // namespace lockstep::launch
