#include "lockstep/monitor/job_folder.h"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/temporary_folder.h"
#include "tests/monitor/statuses.h"

namespace lockstep::monitor {
namespace {

namespace fs = std::filesystem;

class JobFolder : public ::testing::Test {
 protected:
  JobFolder() {
    if (const char* was = std::getenv("XDG_RUNTIME_DIR")) was_ = was;
    ::setenv("XDG_RUNTIME_DIR", folder_.path("").c_str(), 1);
  }
  ~JobFolder() override {
    if (was_.empty()) {
      ::unsetenv("XDG_RUNTIME_DIR");
    } else {
      ::setenv("XDG_RUNTIME_DIR", was_.c_str(), 1);
    }
  }

  TemporaryFolder folder_;
  std::string was_;
};

TEST_F(JobFolder, ListsAJobWhileItRuns) {
  EXPECT_TRUE(list_jobs().empty());
  {
    const StatusFile first("job", "", 0);
    const StatusFile second("job", "", 1);
    first.write(status_of_rank(0));
    second.write(status_of_rank(1));
    EXPECT_EQ(list_jobs(), std::vector<std::string>{"job"});
    const auto statuses = read_statuses(jobs_folder() + "/job");
    ASSERT_EQ(statuses.size(), 2u);
    EXPECT_EQ(statuses[1].rank, 1);
  }
  EXPECT_TRUE(list_jobs().empty());
  EXPECT_TRUE(fs::is_empty(jobs_folder()));
}

// Ranks of a job end at the same time, while somebody looks.
TEST_F(JobFolder, IsLeftByAllRanksAtOnce) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 300;
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) list_jobs();
  });
  std::barrier together(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        auto file =
            std::make_unique<StatusFile>(std::to_string(round), "", rank);
        file->write(status_of_rank(rank));
        together.arrive_and_wait();
        file.reset();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  is_over = true;
  reader.join();
  EXPECT_TRUE(list_jobs().empty());
  EXPECT_TRUE(fs::is_empty(jobs_folder()));
}

TEST_F(JobFolder, IsInTheRunsFolderIfThereIsOne) {
  const std::string out = folder_.path("out");
  {
    const StatusFile file("job", out, 0);
    file.write(status_of_rank(0));
    EXPECT_EQ(list_jobs(), std::vector<std::string>{"job"});
    RankStatus status = status_of_rank(0);
    status.activity = Activity::kEnded;
    file.write(status);
  }
  EXPECT_TRUE(list_jobs().empty());
  // What it said last stays, to be looked at.
  const auto statuses = read_statuses(out + "/live");
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].activity, Activity::kEnded);
}

TEST_F(JobFolder, ForgetsWhoEndedWithoutAWord) {
  const StatusFile file("job", "", 0);
  RankStatus status = status_of_rank(0);
  status.process_start = "1";  // another process has its pid now
  EXPECT_EQ(is_lost(status), true);
  file.write(status);
  EXPECT_TRUE(list_jobs().empty());
  EXPECT_FALSE(fs::exists(jobs_folder() + "/job"));
  // Of another host nobody knows here.
  status.machine = "elsewhere";
  EXPECT_EQ(is_lost(status), std::nullopt);
}

TEST_F(JobFolder, LeavesOutWhatIsNoStatusAndRanksOfALargerAttempt) {
  const std::string out = folder_.path("out");
  const StatusFile file("job", out, 0);
  RankStatus status = status_of_rank(0);
  status.world_size = 2;
  file.write(status);
  for (const int rank : {1, 2, 3}) {
    StatusFile("job", out, rank).write(status_of_rank(rank));
  }
  std::ofstream(out + "/live/rank-7.json") << "garbage";
  std::ofstream(out + "/live/rank-8.json.123.tmp") << "half";
  EXPECT_EQ(read_statuses(out + "/live").size(), 2u);
  EXPECT_THROW(read_statuses(folder_.path("nowhere")), IoError);
}

TEST_F(JobFolder, TellsRanksThatTheyAreWatched) {
  const StatusFile file("job", "", 0);
  file.write(status_of_rank(0));
  EXPECT_FALSE(file.is_watched());
  EXPECT_TRUE(touch_watched(jobs_folder() + "/job"));
  EXPECT_TRUE(file.is_watched());
  fs::last_write_time(
      jobs_folder() + "/job/watched",
      fs::file_time_type::clock::now() - std::chrono::seconds(10));
  EXPECT_FALSE(file.is_watched());
}

// Where others may write, they might put links in our way.
TEST_F(JobFolder, OfOthersIsNotUsed) {
  fs::create_directory(jobs_folder());
  fs::permissions(jobs_folder(), fs::perms::all);
  const StatusFile file("job", "", 0);
  file.write(status_of_rank(0));
  EXPECT_TRUE(fs::is_empty(jobs_folder()));
  EXPECT_TRUE(list_jobs().empty());
}

}  // namespace
}  // namespace lockstep::monitor
