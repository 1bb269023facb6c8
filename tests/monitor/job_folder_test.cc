#include "lockstep/monitor/job_folder.h"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
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

// Ranks of a job end at the same time, while somebody is reading.
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
  // The last status is kept for readers.
  const auto statuses = read_statuses(out + "/live");
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].activity, Activity::kEnded);
}

TEST_F(JobFolder, ForgetsWhoEndedWithoutAWord) {
  const StatusFile file("job", "", 0);
  RankStatus status = status_of_rank(0);
  status.process_start = "1";  // now another process has its pid
  EXPECT_EQ(is_lost(status), true);
  file.write(status);
  EXPECT_TRUE(list_jobs().empty());
  EXPECT_FALSE(fs::exists(jobs_folder() + "/job"));
  // The state of a process on another host is unknown.
  status.machine = "elsewhere";
  EXPECT_EQ(is_lost(status), std::nullopt);
}

void write_lost_status(const std::string& job, const std::string& out) {
  const StatusFile file(job, out, 0);
  RankStatus status = status_of_rank(0);
  status.process_start = "1";
  file.write(status);
}

// The processes of another host can't be checked.
TEST_F(JobFolder, ForgetsRanksOfOtherHostsThatAreSilentForLong) {
  const StatusFile file("job", folder_.path("out"), 0);
  RankStatus status = status_of_rank(0);
  status.machine = "elsewhere";
  status.updated_at = now_s() - 600;
  file.write(status);
  EXPECT_EQ(list_jobs(), std::vector<std::string>{"job"});
  status.updated_at = now_s() - 7200;
  file.write(status);
  EXPECT_TRUE(list_jobs().empty());
  EXPECT_TRUE(fs::is_empty(jobs_folder()));
}

TEST_F(JobFolder, IsClearedOfDeadJobsWhenAJobStarts) {
  fs::create_directory(jobs_folder());
  fs::permissions(jobs_folder(), fs::perms::owner_all);
  fs::create_directory_symlink(folder_.path("gone"), jobs_folder() + "/dead");
  const StatusFile file("job", "", 0);
  EXPECT_EQ(only_entry(jobs_folder()).filename(), "job");
}

// The folder has the statuses of the killed job until the new ranks write
// theirs.
TEST_F(JobFolder, ListsARunThatGoesOnInTheFolderOfAKilledOne) {
  const std::string out = folder_.path("out");
  write_lost_status("killed", out);
  // kill -9 leaves this behind.
  fs::create_directory_symlink(out + "/live", jobs_folder() + "/killed");
  // File times have a resolution of some milliseconds.
  fs::last_write_time(out + "/live/rank-0.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(1));
  const StatusFile file("job", out, 0);
  EXPECT_EQ(list_jobs(), std::vector<std::string>{"job"});
  EXPECT_EQ(only_entry(jobs_folder()).filename(), "job");
  file.write(status_of_rank(0));
  EXPECT_EQ(list_jobs(), std::vector<std::string>{"job"});
}

TEST_F(JobFolder, DoesNotWaitForPipes) {
  const std::string out = folder_.path("out");
  const StatusFile file("job", out, 0);
  file.write(status_of_rank(0));
  const std::string live = out + "/live/";
  for (const std::string& name :
       {std::string("rank-1.json"), std::string("watched"),
        "rank-0.json." + std::to_string(::getpid()) + ".tmp"}) {
    ASSERT_EQ(::mkfifo((live + name).c_str(), 0600), 0);
  }
  EXPECT_EQ(read_statuses(live).size(), 1u);
  EXPECT_FALSE(touch_watched(live));
  RankStatus status = status_of_rank(0);
  status.step = 7;
  file.write(status);
  EXPECT_EQ(read_statuses(live).at(0).step, 7);
}

TEST_F(JobFolder, TakesAStatusOnlyFromTheFileOfItsRank) {
  const std::string out = folder_.path("out");
  const StatusFile file("job", out, 0);
  file.write(status_of_rank(0));
  const std::string text = content_of(out + "/live/rank-0.json");
  for (const char* name :
       {"rank-1.json", "rank-01.json", "rank--1.json", "rank-x.json"}) {
    write_text(out + "/live/" + name, text);
  }
  EXPECT_EQ(read_statuses(out + "/live").size(), 1u);
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

// If other users may write there, they could create links.
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
