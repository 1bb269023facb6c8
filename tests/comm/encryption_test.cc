// Ranks that ask for encrypted connections in the environment.
#include <chrono>

#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/process_group.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/rank_tasks.h"
#include "tests/comm/scoped_environment.h"

namespace lockstep::encryption_test {
namespace {

/// Runs collectives and messages of three ranks over tcp. Returns what they
/// logged.
std::string logged_by_ranks() {
  LogCapture log;
  ProcessGroupOptions options;
  options.backend("tcp").timeout(std::chrono::seconds(100));
  run_threads("send_recv", 3, options);
  run_threads("moves", 3, options);
  return log.text();
}

TEST(Encryption, IsSilentIfItIsAskedFor) {
  const ScopedEnvironment environment({{"LOCKSTEP_ENCRYPT", "1"}});
  EXPECT_EQ(logged_by_ranks(), "");
}

TEST(Encryption, WarnsThatCertificatesAreNotUsed) {
  const ScopedEnvironment environment(
      {{"GLOO_DEVICE_TRANSPORT", "TCP_TLS"},
       {"GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", "job.pem"}});
  const std::string log = logged_by_ranks();
  EXPECT_PRED2(contains, log, "encrypted with keys from the job's store");
  EXPECT_PRED2(contains, log, "GLOO_DEVICE_TRANSPORT_TCP_TLS_* are not used");
}

}  // namespace
}  // namespace lockstep::encryption_test
