// Eight jobs at once on one host. Some of them lose ranks, and one its agent.
// Tier: nightly, 2 cores. It runs eight jobs at once.
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::eight_jobs_test {
namespace {

using ddp_runs::Words;

constexpr int kJobs = 8;
constexpr int kWithLosses = 4;
constexpr int kWithoutAgent = 7;

class EightJobs : public ::testing::Test {
 protected:
  /// Starts the jobs. Each is stopped after a few steps, so that all of them
  /// are there at the same time. The last one is stopped seconds after its
  /// second step, and must have steps left then.
  void start() {
    std::ofstream file(folder_.path("text.txt"));
    for (int i = 0; i < 2000; ++i) file << "line " << i * i << " of a text\n";
    file.close();
    for (int job = 0; job < kJobs; ++job) {
      jobs_.push_back(std::make_unique<Program>(with_ranks(job), environment_));
    }
    for (const auto& job : jobs_) {
      ASSERT_TRUE(job->wait_for_output("step 2/60")) << job->err();
      for (const int rank : {0, 1}) {
        ranks_.push_back(worker_of(job->pid(), rank));
        ASSERT_GT(ranks_.back(), 0) << job->err();
        ::kill(ranks_.back(), SIGSTOP);
      }
    }
  }
  Words training(int job) const {
    return {"train",
            "--model",
            "gpt-nano",
            "--data-file",
            folder_.path("text.txt"),
            "--context",
            "16",
            "--seed",
            std::to_string(1 + job % 2),
            "--shards",
            "2",
            "--no-eval",
            "--log-every",
            "1",
            "--batch-size",
            "8",
            "--max-steps",
            "60"};
  }
  Words with_ranks(int job) const {
    Words words{"run",   "--nproc-per-node", "2", "--max-restarts", "3", "--",
                kProgram};
    for (const std::string& word : training(job)) words.push_back(word);
    words.insert(words.end(), {"--strategy", "ddp"});
    return words;
  }
  pid_t rank_of(int job, int rank) const {
    return ranks_[static_cast<size_t>(2 * job + rank)];
  }
  void go_on() const {
    for (const pid_t pid : ranks_) ::kill(pid, SIGCONT);
  }

  const TemporaryFolder folder_;
  // The jobs of other users and tests are not shown, and their files not found.
  const std::map<std::string, std::string> environment_{
      {"XDG_RUNTIME_DIR", folder_.path("")}, {"TMPDIR", folder_.path("")}};
  std::vector<std::unique_ptr<Program>> jobs_;
  std::vector<pid_t> ranks_;
};

TEST_F(EightJobs, AreIndependentOfEachOther) {
  start();
  const auto shown = nlohmann::json::parse(
      run_lockstep({"top", "--once", "--json"}, environment_).out, nullptr,
      false);
  ASSERT_FALSE(shown.is_discarded());
  std::set<pid_t> pids;
  for (const auto& job : shown.at("jobs")) {
    for (const auto& rank : job.at("ranks")) {
      pids.insert(rank.at("pid").get<pid_t>());
    }
  }
  EXPECT_EQ(shown.at("jobs").size(), kJobs);
  EXPECT_EQ(pids, std::set<pid_t>(ranks_.begin(), ranks_.end()));

  // Jobs 0 to 3 lose a rank, and job 3 loses both.
  for (int job = 0; job < kWithLosses; ++job) {
    ::kill(rank_of(job, job % 2), SIGKILL);
  }
  ::kill(rank_of(3, 0), SIGKILL);
  jobs_[kWithoutAgent]->send(SIGKILL);
  go_on();
  std::vector<std::string> digests;
  for (const int job : {0, 1}) {
    digests.push_back(digest_in(run_lockstep(training(job)).out));
  }
  for (int job = 0; job < kJobs; ++job) {
    Program& program = *jobs_[static_cast<size_t>(job)];
    if (job == kWithoutAgent) {
      EXPECT_EQ(program.wait(), -SIGKILL);
      continue;
    }
    EXPECT_EQ(program.wait(), 0) << program.err();
    EXPECT_EQ(digest_in(program.out()), digests[static_cast<size_t>(job % 2)]);
    EXPECT_EQ(contains(program.err(), " survived\n"), job < kWithLosses)
        << program.err();
  }
  for (const pid_t pid : ranks_) EXPECT_TRUE(is_gone(pid));
  EXPECT_PRED2(contains, run_lockstep({"top", "--once"}, environment_).out,
               "none of your jobs is running on this host");
}

}  // namespace
}  // namespace lockstep::eight_jobs_test
