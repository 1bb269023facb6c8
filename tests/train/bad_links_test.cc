// Runs on devices that have a bad link between them.
#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/links/link_faults.h"
#include "tests/train/runs.h"

namespace lockstep::train {
namespace {

constexpr int kSlices = 2;

class BadLinkRuns : public testing::TestWithParam<Strategy> {
 protected:
  // Faults of this process, so the check has to be made in it.
  BadLinkRuns() { ::setenv("LOCKSTEP_PROGRAM", "/no/such/program", 1); }
  ~BadLinkRuns() override {
    inject_link_faults("");
    ::unsetenv("LOCKSTEP_PROGRAM");
  }

  static ImageTraining run_on_slices() {
    ImageTraining options = sharded_run();
    options.strategy(GetParam());
    options.shards(kSlices);
    options.devices().clear();
    for (int i = 0; i < kSlices; ++i) {
      options.devices().push_back(
          {.kind = DeviceKind::kCpu, .index = i, .slices = kSlices});
    }
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
    EXPECT_NE(log.text().find("now go through host memory"), std::string::npos)
        << log.text();
  }
}

// As in the story of GPUs without NVLink: the loss grows to NaN.
TEST_P(BadLinkRuns, GoWrongWithoutTheCheckAndTheCauseIsNamed) {
  ImageTraining options = run_on_slices();
  options.verify().bad_links(BadLinks::kIgnore);
  // Weights and gradients, and no inputs.
  inject_link_faults("corrupt:cpu:0>cpu:1@16384;corrupt:cpu:1>cpu:0@16384");
  options.model.width = 256;
  try {
    const RunReport report = run_training(options);
    FAIL() << "the loss is " << report.losses.back();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadLink) << error.what();
    const std::string what = error.what();
    EXPECT_TRUE(what.find("the copy of parameter '") != std::string::npos ||
                what.find("arrived changed") != std::string::npos)
        << what;
  }
}

TEST_P(BadLinkRuns, EndBeforeTheFirstStepIfToldSo) {
  ImageTraining options = run_on_slices();
  options.verify().bad_links(BadLinks::kStop);
  inject_link_faults("drop:cpu:0>cpu:1");
  try {
    run_training(options);
    FAIL() << "it trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadLink) << error.what();
  }
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
  options.devices({{.kind = DeviceKind::kCpu, .index = 0, .slices = 2},
                   {.kind = DeviceKind::kCpu, .index = 1, .slices = 2}});
  options.optimizer.lr = 1e30;
  try {
    run_training(options);
    FAIL() << "it trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFinite) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::train
