#include "lockstep/tools/top/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/median.h"
#include "lockstep/tools/top/job_screen.h"
#include "tests/base/expect_problem.h"
#include "tests/monitor/statuses.h"

namespace lockstep::monitor {
namespace {

constexpr double kNow = 1e9 + 100.5;

std::vector<RankStatus> four_ranks() {
  std::vector<RankStatus> ranks;
  for (int64_t rank = 0; rank < 4; ++rank)
    ranks.push_back(status_of_rank(rank));
  return ranks;
}

Job job_of(std::vector<RankStatus> ranks) {
  return make_job("job", "/run/job", std::move(ranks), kNow);
}

size_t longest_of(const std::string& text) {
  size_t longest = 0, now = 0;
  for (const char c : text) {
    if (c == '\n') {
      now = 0;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      longest = std::max(longest, ++now);
    }
  }
  return longest;
}

std::string drawn(const std::vector<Job>& jobs, int width, int height,
                  View view = {}) {
  return plain_text(draw_jobs(jobs, view, width, height));
}

TEST(Jobs, NameTheRankThatOthersWaitFor) {
  auto ranks = four_ranks();
  for (auto& rank : ranks) rank.devices[0].busy_fraction = 0.5;
  ranks[2].devices[0].busy_fraction = 0.95;
  const Job job = job_of(ranks);
  EXPECT_EQ(job.notes[2], RankNote::kSlow);
  EXPECT_EQ(std::count(job.notes.begin(), job.notes.end(), RankNote::kNone), 3);
  EXPECT_PRED2(contains, drawn({job}, 80, 24), "slow");
  ranks.resize(1);
  EXPECT_EQ(job_of(ranks).notes[0], RankNote::kNone);
}

// The median is computed from sorted times, once for all ranks.
TEST(Jobs, CompareEachRankWithTheMedianOfTheOthers) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> share(0.1, 1);
  for (int round = 0; round < 200; ++round) {
    std::vector<RankStatus> ranks(1 + round % 7, status_of_rank(0));
    for (auto& rank : ranks) {
      // Some fractions are equal.
      rank.devices[0].busy_fraction = std::round(10 * share(random)) / 10;
    }
    const Job job = job_of(ranks);
    for (size_t r = 0; r < ranks.size(); ++r) {
      std::vector<double> others;
      for (size_t other = 0; other < ranks.size(); ++other) {
        if (other != r) others.push_back(ranks[other].devices[0].busy_fraction);
      }
      const double own = ranks[r].devices[0].busy_fraction;
      const double others_median = median(others);
      // Skip cases that rounding decides.
      if (std::abs(own - kSlowFactor * others_median) < 1e-6) continue;
      const bool is_slow =
          others_median > 0 && own > kSlowFactor * others_median;
      EXPECT_EQ(job.notes[r] == RankNote::kSlow, is_slow);
    }
  }
}

TEST(Jobs, MayHaveVeryManyRanks) {
  const auto begin = std::chrono::steady_clock::now();
  const Job job = job_of(std::vector<RankStatus>(20'000, status_of_rank(0)));
  EXPECT_EQ(job.notes.size(), 20'000u);
  // Comparing each rank with each other rank took minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Jobs, HaveNamesThatCantSpoilATerminal) {
  const Job job = make_job("a\x1b[2J\n\u009b1m\u202eb\xff", "/run/\xff\u009b",
                           four_ranks(), kNow);
  EXPECT_EQ(job.name, "a?[2J??1m?b?");
  const std::string json = jobs_json({job});
  EXPECT_EQ(nlohmann::json::parse(json)["jobs"][0]["folder"],
            "/run/\ufffd\u009b");
  EXPECT_TRUE(std::all_of(json.begin(), json.end(), [](char c) {
    return c == '\n' || (c >= ' ' && c <= '~');
  })) << json;
  const Job named = make_job("gr\u00fcn", "", four_ranks(), kNow);
  EXPECT_PRED2(contains, drawn({named}, 80, 24), "gr\u00fcn");
  EXPECT_PRED2(contains, drawn({named}, 80, 24, {.is_utf8 = false}), "gr??n");
}

TEST(Jobs, NameWhoIsGoneOrSilent) {
  auto ranks = four_ranks();
  ranks[0].activity = Activity::kEnded;
  ranks[1].process_start = "1";
  ranks[3].updated_at = kNow - 60;
  const Job job = job_of(ranks);
  EXPECT_EQ(job.notes,
            (std::vector<RankNote>{RankNote::kEnded, RankNote::kLost,
                                   RankNote::kNone, RankNote::kStale}));
}

TEST(Jobs, FillTheScreenAndNoMore) {
  const std::vector<Job> jobs{job_of(four_ranks())};
  for (const auto& [width, height] :
       {std::pair(80, 24), {200, 60}, {60, 20}, {40, 10}, {20, 5}, {1, 1}}) {
    const std::string text = drawn(jobs, width, height);
    EXPECT_LE(longest_of(text), static_cast<size_t>(width)) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), height) << text;
  }
  const std::string wide = drawn(jobs, 200, 60);
  for (const char* word : {"gpt-char, ddp, 4 ranks over shm",
                           "step 1,204/5,000",
                           "24 %",
                           "1 restart",
                           "40.0 ms a step",
                           "1,450 samples/s",
                           "loss 1.5000",
                           "HOST",
                           "PID",
                           "DEVICE",
                           "BUSY",
                           "MEMORY",
                           "PEAK",
                           "WAIT",
                           "COMM",
                           "box",
                           "cpu:3",
                           "80 %",
                           "120.0 MiB",
                           "LOSS of steps 1 to 1204",
                           "4.5"}) {
    EXPECT_PRED2(contains, wide, word);
  }
  const std::string narrow = drawn(jobs, 60, 20);
  EXPECT_FALSE(contains(narrow, "HOST")) << narrow;
  EXPECT_PRED2(contains, narrow, "MEMORY");
}

TEST(Jobs, OfManyRanksAreScrolled) {
  std::vector<RankStatus> ranks;
  for (int64_t rank = 0; rank < 64; ++rank) {
    ranks.push_back(status_of_rank(rank));
  }
  View view{.first_row = 10};
  const std::string text = plain_text(draw_jobs({job_of(ranks)}, view, 80, 24));
  EXPECT_PRED2(contains, text, "cpu:10");
  EXPECT_FALSE(contains(text, "cpu:9 ")) << text;
  EXPECT_PRED2(contains, text, "up/down scroll");
  view.first_row = 1000;
  EXPECT_PRED2(contains, plain_text(draw_jobs({job_of(ranks)}, view, 80, 24)),
               "cpu:63");
  EXPECT_LT(view.first_row, 64u);
}

TEST(Jobs, AreDrawnInAsciiWhereThereIsNoMore) {
  const std::string text =
      drawn({job_of(four_ranks())}, 80, 24, {.is_utf8 = false});
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<signed char>(c) > 0;
  })) << text;
  EXPECT_PRED2(contains, text, "########..");
  EXPECT_PRED2(contains, text, "*");
}

TEST(Jobs, AreToldToScripts) {
  const auto json = nlohmann::json::parse(jobs_json({job_of(four_ranks())}));
  const auto& job = json.at("jobs").at(0);
  EXPECT_EQ(job.at("name"), "job");
  EXPECT_EQ(job.at("ranks").size(), 4u);
  EXPECT_EQ(job.at("ranks").at(1).at("note"), "");
  EXPECT_NEAR(job.at("seconds_left").get<double>(), 3796 * 0.04, 1e-6);
}

TEST(Jobs, AreMetricsForPrometheus) {
  auto ranks = four_ranks();
  ranks[1].model = "a\"b\\c";
  const std::string text = jobs_metrics({job_of(ranks)});
  EXPECT_PRED2(contains, text,
               "# TYPE lockstep_steps_total counter\n"
               "lockstep_steps_total{job=\"job\",model=\"gpt-char\","
               "rank=\"0\"} 1204\n");
  EXPECT_PRED2(contains, text, "model=\"a\\\"b\\\\c\"");
  EXPECT_PRED2(contains, text,
               "lockstep_device_busy_ratio{job=\"job\",rank=\"3\","
               "device=\"cpu:3\"} 0.8\n");
  EXPECT_PRED2(contains, text, "lockstep_up{");
  EXPECT_EQ(jobs_metrics({}), "");
}

}  // namespace
}  // namespace lockstep::monitor
