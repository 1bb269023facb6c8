// Runs on devices that have a bad link between them.

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/faults/link_faults.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

constexpr int kSlices = 2;

class BadLinkRuns : public testing::TestWithParam<Strategy> {
 protected:
  ~BadLinkRuns() override { inject_link_faults(""); }

  static ImageTraining run_on_slices() {
    ImageTraining options = sharded_run();
    options.strategy(GetParam());
    options.shards(kSlices);
    options.devices(cpu_slices(kSlices));
    return options;
  }
};

TEST_P(BadLinkRuns, HaveTheSameBitsByTheSafeWay) {
  const std::string expected = run_training(run_on_slices()).parameter_sha256;
  for (const char* fault : {"corrupt:cpu:0>cpu:1;corrupt:cpu:1>cpu:0",
                            "drop:cpu:0>cpu:1", "drop:cpu:1>cpu:0"}) {
    inject_link_faults(fault);
    LogCapture log;
    EXPECT_EQ(run_training(run_on_slices()).parameter_sha256, expected)
        << fault;
    EXPECT_PRED2(contains, log.text(), "now go through host memory");
  }
}

// As in the story of GPUs without NVLink: the loss grows to NaN.
TEST_P(BadLinkRuns, GoWrongWithoutTheCheckAndTheCauseIsNamed) {
  ImageTraining options = run_on_slices();
  options.verify().bad_links(BadLinks::kIgnore);
  // Weights and gradients, and no inputs.
  inject_link_faults("corrupt:cpu:0>cpu:1@16384;corrupt:cpu:1>cpu:0@16384");
  options.model.width = 256;
  const std::string message = error_of<Error>([&] { run_training(options); });
  expect_problem(message, ErrorCode::kBadLink, {});
  EXPECT_TRUE(contains(message, "the copy of parameter '") ||
              contains(message, "arrived changed"))
      << message;
}

TEST_P(BadLinkRuns, EndBeforeTheFirstStepIfToldSo) {
  ImageTraining options = run_on_slices();
  options.verify().bad_links(BadLinks::kStop);
  inject_link_faults("drop:cpu:0>cpu:1");
  EXPECT_EQ(error_code_of([&] { run_training(options); }), ErrorCode::kBadLink);
}

INSTANTIATE_TEST_SUITE_P(Strategies, BadLinkRuns,
                         testing::Values(Strategy::kDataParallel,
                                         Strategy::kDataParallelClassic),
                         [](const auto& info) {
                           return info.param == Strategy::kDataParallel
                                      ? "dp"
                                      : "dp_classic";
                         });

TEST(DivergingLoss, IsNotTakenForABadLink) {
  ImageTraining options = sharded_run();
  options.strategy(Strategy::kDataParallel);
  options.devices(cpu_slices(2));
  options.optimizer.lr = 1e30;
  EXPECT_EQ(error_code_of([&] { run_training(options); }),
            ErrorCode::kNotFinite);
}

}  // namespace
}  // namespace lockstep::training
