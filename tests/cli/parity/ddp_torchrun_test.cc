#include <string>

#include <gtest/gtest.h>

#include "tests/cli/ddp_runs.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::ddp_torchrun_test {
namespace {

using namespace ddp_runs;  // NOLINT

TEST(DdpAndTorchrun, GiveTheBitsOfOneDevice) {
  int status = 0;
  const std::string out =
      output_of(LOCKSTEP_TEST_PYTHON
                    " -m torch.distributed.run --nproc-per-node 2 "
                    "--standalone --no-python " +
                    kProgram + joined(ddp_words(kSixSteps)),
                status);
  EXPECT_EQ(digest_in(out), single_digest()) << out;
}

}  // namespace
}  // namespace lockstep::ddp_torchrun_test
