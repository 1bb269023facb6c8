#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/device/device.h"
#include "lockstep/train/run_report.h"
#include "lockstep/train/train_options.h"

// Options and results of runs of an instant.
namespace lockstep::training {

/// Returns one of `count` equal slices of this host.
inline Device cpu_slice(int index = 0, int count = 1) {
  return {.type = c10::kCPU, .index = index, .slices = count};
}

inline std::vector<Device> cpu_slices(int count) {
  std::vector<Device> slices;
  for (int i = 0; i < count; ++i) slices.push_back(cpu_slice(i, count));
  return slices;
}

/// Returns options for a run on one slice. Two or four slices give the same
/// bits, if `shards` is a multiple of their number.
inline TrainOptions short_run(int64_t batch_size, int64_t shards) {
  TrainOptions options;
  options.devices({cpu_slice()});
  options.batch_size(batch_size);
  options.shards(shards);
  options.intra_op_threads(1);
  options.log().progress(false);
  return options;
}

inline void expect_same(const RunReport& got, const RunReport& expected,
                        const std::string& what) {
  EXPECT_EQ(got.parameter_sha256, expected.parameter_sha256) << what;
  EXPECT_EQ(got.losses, expected.losses) << what;
  EXPECT_EQ(got.test.metrics, expected.test.metrics) << what;
  ASSERT_EQ(got.epochs.size(), expected.epochs.size()) << what;
  EXPECT_EQ(got.epochs.back().train, expected.epochs.back().train) << what;
}

}  // namespace lockstep::training
