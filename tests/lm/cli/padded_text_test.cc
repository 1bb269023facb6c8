// examples/padded_text: a batch in which few targets count has the same loss
// for every way to compute it, and one digest for each number of shards.
// Tier: nightly. Language models.
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::padded_text_test {
namespace {

const std::string kPaddedText = LOCKSTEP_BINARY_DIR "/bin/padded_text";

// The losses are about 5, where float32 numbers are 5e-7 apart. The shards are
// rounded in a different order than the whole batch.
constexpr double kTolerance = 1e-6;

struct Printed {
  double first_loss = -1;
  double last_loss = -1;
  std::string digest;
};

double number_after(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  if (at == text.npos) return -1;
  return std::stod(text.substr(at + words.size()));
}

Printed run(const std::string& command) {
  int status = 0;
  const std::string out = ddp_runs::output_of(command, status);
  EXPECT_EQ(status, 0) << command << "\n" << out;
  return {.first_loss = number_after(out, "step  1: loss "),
          .last_loss = number_after(out, "step 10: loss "),
          .digest = digest_in(out)};
}

/// Returns each way to compute a batch in `devices` times `accumulate` shards.
std::vector<std::string> commands(int devices, int accumulate) {
  return {fmt::format("{} dp {} {}", kPaddedText, devices, accumulate),
          fmt::format("{} ddp {} {}", kPaddedText, devices, accumulate),
          fmt::format("{} run --nproc-per-node {} --label-lines off -- {} ddp "
                      "0 {}",
                      kProgram, devices, kPaddedText, accumulate)};
}

TEST(PaddedText,
     HasOneLossHoweverItIsComputedAndOneDigestForOneNumberOfShards) {
  const Printed plain = run(kPaddedText + " plain");
  ASSERT_GT(plain.first_loss, 4);
  ASSERT_LT(plain.last_loss, plain.first_loss - 1) << "it learns nothing";
  std::map<int, std::string> digests;  // by the number of shards
  for (const int devices : {1, 2, 4}) {
    for (const int accumulate : {1, 2, 4}) {
      for (const std::string& command : commands(devices, accumulate)) {
        const Printed printed = run(command);
        EXPECT_NEAR(printed.first_loss, plain.first_loss, kTolerance)
            << command;
        EXPECT_NEAR(printed.last_loss, plain.last_loss, kTolerance) << command;
        std::string& expected = digests[devices * accumulate];
        if (expected.empty()) expected = printed.digest;
        EXPECT_EQ(printed.digest, expected) << command;
      }
    }
  }
  EXPECT_EQ(digests.size(), 5);
}

}  // namespace
}  // namespace lockstep::padded_text_test
