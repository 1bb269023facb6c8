// examples/own_model: a model, data, a loss and an optimizer that Lockstep does
// not know have all features of `lockstep train`.
// Tier: full, by case. Each case starts a program.
#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::own_model_test {
namespace {

using ddp_runs::joined;
using ddp_runs::output_of;
using Words = std::vector<std::string>;

const std::string kOwnModel = LOCKSTEP_BINARY_DIR "/bin/own_model";

/// Returns the output of the program.
std::string own_model(const Words& words, int expected_status = 0) {
  int status = 0;
  const std::string out = output_of(kOwnModel + joined(words), status);
  EXPECT_EQ(status, expected_status) << out;
  return out;
}

/// Returns the arguments of 20 epochs of 32 steps, in 2 shards.
Words twenty_epochs(Words more) {
  more.insert(more.end(), {"--epochs", "20", "--shards", "2"});
  return more;
}

std::string single_digest() {
  static const std::string digest =
      digest_in(own_model(twenty_epochs({"--devices", "cpu"})));
  return digest;
}

TEST(OwnModel, HasOneDigestInEveryStrategy) {
  const std::string learned = own_model(twenty_epochs({"--devices", "cpu"}));
  EXPECT_PRED2(contains, learned, "Test Acc: 9") << "it learns nothing";
  EXPECT_EQ(digest_in(learned), single_digest());
  for (const Words& words :
       {Words{"--strategy", "dp", "--devices", "2xcpu"},
        Words{"--strategy", "ddp", "--devices", "2xcpu"},
        Words{"--strategy", "ddp", "--devices", "2xcpu", "--backend", "tcp"},
        Words{"--devices", "cpu", "--accumulate", "2", "--drop-last"}}) {
    const bool drops = words.back() == "--drop-last";
    const std::string expected =
        drops ? digest_in(own_model(
                    twenty_epochs({"--devices", "cpu", "--drop-last"})))
              : single_digest();
    EXPECT_EQ(digest_in(own_model(twenty_epochs(words))), expected)
        << joined(words);
  }
}

TEST(OwnModel, StopsAndGoesOnWithAnotherStrategy) {
  const TemporaryFolder folder;
  const Words run{"--out-dir", folder.path("run"), "--resume", "auto"};
  const auto with = [&](Words words) {
    words.insert(words.end(), run.begin(), run.end());
    return own_model(twenty_epochs(words));
  };
  with({"--strategy", "ddp", "--devices", "2xcpu", "--max-steps", "100"});
  with({"--strategy", "dp", "--devices", "2xcpu", "--max-steps", "333"});
  const std::string out = with({"--devices", "cpu"});
  EXPECT_PRED2(contains, out, "step-00000333: step 333 of 640");
  EXPECT_EQ(digest_in(out), single_digest());
}

// The fault table has many faults of `lockstep train`. This one is of a program
// that calls train_main().
TEST(OwnModel, KilledHasTheDigestOfTheUninterruptedRun) {
  const Words run{
      "run",     "--nproc-per-node", "2",   "--max-restarts", "1", "--",
      kOwnModel, "--strategy",       "ddp", "--shards",       "2", "--epochs",
      "20",      "--log-every",      "10"};
  Program program(run);
  ASSERT_TRUE(program.wait_for_output("step 50/640")) << program.err();
  ::kill(children_of(program.pid(), "own_model").at(0), SIGKILL);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(digest_in(program.out()), single_digest());
  EXPECT_PRED2(contains, program.err(), "[launch] 1 failure survived\n");
}

TEST(OwnModel, ExplainsItsOptions) {
  EXPECT_PRED2(contains, own_model({"--help"}), "--strategy NAME");
  EXPECT_PRED2(contains, own_model({"--stratgy", "dp"}, 2),
               "did you mean '--strategy'? See `own_model --help`");
  EXPECT_PRED2(contains, own_model({"dp"}, 2),
               "unexpected argument 'dp'; see `own_model --help`");
  EXPECT_PRED2(
      contains,
      own_model({"--accumulate", "3", "--batch-size", "64", "--devices", "1"},
                2),
      "a multiple of 3: 63 or 66");
}

}  // namespace
}  // namespace lockstep::own_model_test
