// A host with only IPv6, as a network namespace.
// Tier: nightly. Loopback covers the rest of the addresses.

#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep::ipv6_test {
namespace {

const std::string kTrain =
    "train --model mlp --strategy ddp --max-steps 2 --batch-size 8 --no-eval ";

/// Runs the program where 127.0.0.1 can't be reached.
CommandResult run_without_ipv4(const std::string& arguments) {
  const std::string script =
      "{ ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
      "ip -6 addr show dev lo | grep -q ::1; } >&2 || exit 77; exec '" +
      kProgram + "' " + arguments;
  return run_command({.arguments = {"unshare", "--user", "--map-root-user",
                                    "--net", "sh", "-c", script},
                      .environment = {},
                      .deadline_s = 200,
                      .stop = {}});
}

class HostWithoutIpv4 : public testing::TestWithParam<std::string> {};

TEST_P(HostWithoutIpv4, Trains) {
  const auto result = run_without_ipv4(GetParam());
  if (result.exit_code == 77 || contains(result.err, "unshare:")) {
    GTEST_SKIP() << "no such namespace can be made: " << result.err;
  }
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_PRED2(contains, result.out, "parameter_sha256");
}

INSTANTIATE_TEST_SUITE_P(
    All, HostWithoutIpv4,
    testing::Values(kTrain + "--devices 2xcpu",
                    "run --nproc-per-node 2 -- '" + kProgram + "' " + kTrain +
                        "--backend shm",
                    "run --nproc-per-node 2 -- '" + kProgram + "' " + kTrain +
                        "--backend tcp",
                    "run --standalone --nproc-per-node 2 -- '" + kProgram +
                        "' " + kTrain,
                    "run --rdzv-backend c10d --nproc-per-node 2 -- '" +
                        kProgram + "' " + kTrain));

}  // namespace
}  // namespace lockstep::ipv6_test
