// Nodes that join and leave while `lockstep train` runs: --nnodes MIN:MAX.
// Tier: nightly, 2 cores. It runs the agents of three nodes.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::elastic_test {
namespace {

using Words = std::vector<std::string>;

Words training(const Words& strategy) {
  Words words{"train",
              "--model",
              "mlp",
              "--data",
              "synthetic",
              "--shards",
              "4",
              "--batch-size",
              "32",
              "--max-steps",
              "120",
              "--no-eval",
              "--intra-op-threads",
              "1",
              "--log-every",
              "1"};
  words.insert(words.end(), strategy.begin(), strategy.end());
  return words;
}

std::unique_ptr<Program> start_node(const std::string& port,
                                    const std::string& workers = "2") {
  Words words{"run",
              "--nproc-per-node",
              workers,
              "--nnodes",
              "1:2",
              "--rdzv-backend",
              "c10d",
              "--rdzv-endpoint",
              "127.0.0.1:" + port,
              "--max-restarts",
              "3",
              "--",
              kProgram};
  const Words program = training({"--strategy", "ddp"});
  words.insert(words.end(), program.begin(), program.end());
  return std::make_unique<Program>(words);
}

TEST(Elastic, FourWorkersBecomeTwoAndFourAgainWithTheSameBits) {
  const Ended quiet =
      run_lockstep(training({"--strategy", "dp", "--devices", "2xcpu"}));
  ASSERT_EQ(quiet.code, 0) << quiet.err;
  // The last case has three workers, which can't divide four shards equally.
  const std::map<int, std::string> last_workers{{SIGTERM, "2"}, {SIGKILL, "1"}};
  for (const auto& [signal, workers] : last_workers) {
    const std::string port = free_port();
    const auto first = start_node(port);
    // The first node serves the store.
    ASSERT_TRUE(wait_until([&] {
      return launch::is_reachable({"127.0.0.1", std::stoi(port)}, 1000);
    }));
    const auto second = start_node(port);
    ASSERT_TRUE(first->wait_for_output("step 15/120")) << first->err();
    second->send(signal);
    ASSERT_TRUE(first->wait_for_output("resumed from memory: step "))
        << first->err();
    const auto third = start_node(port, workers);
    EXPECT_EQ(first->wait(), 0) << first->err();
    EXPECT_EQ(third->wait(), 0) << third->err();
    EXPECT_EQ(digest_in(first->out()), digest_in(quiet.out));
    EXPECT_PRED2(contains, first->err(), "another node has come");
    EXPECT_PRED2(contains, first->err(), "2 wait for the others");
  }
}

}  // namespace
}  // namespace lockstep::elastic_test
