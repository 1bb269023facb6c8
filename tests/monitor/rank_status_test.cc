#include "lockstep/monitor/rank_status.h"

#include <limits>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "tests/monitor/statuses.h"

namespace lockstep::monitor {
namespace {

TEST(RankStatuses, AreReadAsTheyWereWritten) {
  RankStatus status = status_of_rank(2);
  status.wait_fraction.reset();
  const RankStatus read = rank_status_from_json(to_json(status));
  EXPECT_EQ(to_json(read), to_json(status));
  EXPECT_EQ(read.devices.at(0).memory_bytes, 120 << 20);
  EXPECT_EQ(read.losses.at(1).step, 1204);
  EXPECT_FALSE(read.wait_fraction);
  EXPECT_EQ(read.communication_fraction, 0.05);
}

TEST(RankStatuses, HaveNoNumberThatJsonLacks) {
  RankStatus status = status_of_rank(0);
  status.losses.back().loss = std::numeric_limits<double>::quiet_NaN();
  status.samples_per_s = std::numeric_limits<double>::infinity();
  status.model = "\xff\xfe";
  const RankStatus read = rank_status_from_json(to_json(status));
  EXPECT_EQ(read.losses.back().loss, 0);
}

TEST(RankStatuses, OfAHostileFileAreRefused) {
  for (const char* text :
       {"", "{}", "[]", "null", "{\"rank\": 1", "{\"rank\": 1e400}"}) {
    EXPECT_THROW(rank_status_from_json(text), IoError) << text;
  }
  const auto good = nlohmann::json::parse(to_json(status_of_rank(0)));
  for (const auto& [key, value] : good.items()) {
    nlohmann::json bad = good;
    bad.erase(key);
    EXPECT_THROW(rank_status_from_json(bad.dump()), IoError) << key;
    bad[key] = value.is_object() ? nlohmann::json(1) : nlohmann::json::object();
    EXPECT_THROW(rank_status_from_json(bad.dump()), IoError) << key;
  }
  nlohmann::json long_list = good;
  for (int i = 0; i < 5000; ++i) long_list["losses"].push_back({i, 1.0});
  EXPECT_THROW(rank_status_from_json(long_list.dump()), IoError);
}

TEST(RankStatuses, CantSpoilATerminal) {
  RankStatus status = status_of_rank(0);
  status.host = "box\x1b[2J\n";
  EXPECT_EQ(rank_status_from_json(to_json(status)).host, "box?[2J?");
  status.host = "box\u009b2J\u202e";
  EXPECT_EQ(rank_status_from_json(to_json(status)).host, "box?2J?");
  status.host = std::string(255, 'x') + "\u00fc";
  const std::string cut = rank_status_from_json(to_json(status)).host;
  EXPECT_EQ(cut, std::string(255, 'x') + " [...]");
}

TEST(RankStatuses, KnowAProcessByWhenItBegan) {
  EXPECT_FALSE(process_start(::getpid()).empty());
  EXPECT_EQ(process_start(::getpid()), process_start(::getpid()));
  EXPECT_NE(process_start(::getpid()), process_start(1));
  EXPECT_EQ(process_start(1 << 30), "");
}

TEST(RankStatuses, TakeAProcessForEndedBeforeItsParentKnows) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(process_start(child), "");
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::monitor
