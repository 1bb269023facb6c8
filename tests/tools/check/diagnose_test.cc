#include "lockstep/tools/check/diagnose.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::tools {
namespace {

/// Returns the facts of a machine without problems.
HostFacts good_host() {
  HostFacts facts;
  facts.lockstep_version = "0.1.0";
  facts.torch_built_with = "2.11";
  facts.torch_loaded = "2.11.0";
  facts.cpu_capability = "AVX512";
  facts.cores_online = facts.cores_in_affinity = facts.cores_allowed = 8;
  facts.memory_total_bytes = 32LL << 30;
  facts.memory_available_bytes = 16LL << 30;
  facts.transparent_huge_pages = "madvise";
  facts.open_files = 4096;
  facts.open_files_hard = 1 << 20;
  facts.shm_free_bytes = 8LL << 30;
  return facts;
}

Finding find(const HostFacts& facts, const std::string& topic) {
  for (const auto& finding : diagnose(facts)) {
    if (finding.topic == topic) return finding;
  }
  ADD_FAILURE() << "nothing is said of " << topic;
  return {};
}

void expect_verdict(const HostFacts& facts, const std::string& topic,
                    Verdict verdict) {
  const Finding finding = find(facts, topic);
  EXPECT_EQ(finding.verdict, verdict) << topic << ": " << finding.found;
  // Every problem comes with a fix.
  EXPECT_EQ(finding.fix.empty(), verdict == Verdict::kOk) << topic;
}

TEST(Diagnose, FindsNothingToPutRightOnAGoodHost) {
  for (const auto& finding : diagnose(good_host())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.topic;
    EXPECT_FALSE(finding.found.empty()) << finding.topic;
  }
}

TEST(Diagnose, FailsWhenAnotherLibTorchIsLoaded) {
  auto facts = good_host();
  facts.torch_loaded = "2.1.1";
  expect_verdict(facts, "LibTorch", Verdict::kFail);
  facts.torch_loaded = "2.110.0";
  expect_verdict(facts, "LibTorch", Verdict::kFail);
  facts.torch_loaded = "2.11.1";
  expect_verdict(facts, "LibTorch", Verdict::kOk);
}

TEST(Diagnose, WarnsOfADriverWithoutUse) {
  auto facts = good_host();
  facts.cuda_driver = "580.65.06";
  expect_verdict(facts, "CUDA", Verdict::kWarn);
  EXPECT_NE(find(facts, "CUDA").fix.find("rebuild"), std::string::npos);
  facts.is_cuda_built = true;
  expect_verdict(facts, "CUDA", Verdict::kWarn);
  EXPECT_NE(find(facts, "CUDA").fix.find("nvidia-smi"), std::string::npos);
  facts.gpus = {{"H100", 80LL << 30}};
  expect_verdict(facts, "CUDA", Verdict::kOk);
  EXPECT_NE(find(facts, "CUDA").found.find("cuda:0 H100 80"),
            std::string::npos);
}

TEST(Diagnose, WarnsOfOneCoreUnlessThereIsAGpu) {
  auto facts = good_host();
  facts.cores_allowed = 1;
  expect_verdict(facts, "cores", Verdict::kWarn);
  facts.gpus = {{"H100", 80LL << 30}};
  expect_verdict(facts, "cores", Verdict::kOk);
  facts.cpu_quota = 0.5;
  expect_verdict(facts, "cores", Verdict::kWarn);
}

TEST(Diagnose, TakesTheContainersLimitForMemory) {
  auto facts = good_host();
  facts.cgroup_memory_bytes = 4LL << 30;
  expect_verdict(facts, "memory", Verdict::kOk);
  facts.cgroup_used_bytes = 3LL << 30;
  expect_verdict(facts, "memory", Verdict::kWarn);
  facts.cgroup_used_bytes = (4LL << 30) - (1 << 20);
  expect_verdict(facts, "memory", Verdict::kFail);
}

TEST(Diagnose, JudgesEachLimit) {
  auto facts = good_host();
  facts.open_files = 256;
  expect_verdict(facts, "open files", Verdict::kWarn);
  facts.open_files = 20;
  expect_verdict(facts, "open files", Verdict::kFail);
  facts.shm_free_bytes = 64 << 20;
  expect_verdict(facts, "/dev/shm", Verdict::kWarn);
  facts.shm_free_bytes.reset();
  expect_verdict(facts, "/dev/shm", Verdict::kWarn);
  facts.transparent_huge_pages = "never";
  expect_verdict(facts, "huge pages", Verdict::kWarn);
  facts.cpu_capability = "DEFAULT";
  expect_verdict(facts, "CPU kernels", Verdict::kWarn);
  facts.gpus = {{"H100", 80LL << 30}};
  facts.locked_memory_bytes = 1 << 20;
  expect_verdict(facts, "locked memory", Verdict::kWarn);
}

TEST(Diagnose, SaysWhatToDoAboutEveryDisturbingVariable) {
  auto facts = good_host();
  for (const auto& [name, fix] : disturbing_variables()) {
    facts.environment = {{name, "1"}};
    expect_verdict(facts, name, Verdict::kWarn);
    EXPECT_EQ(find(facts, name).fix, fix);
  }
}

TEST(CgroupMemory, TakesTheLeastOfTheGroupsAround) {
  const TemporaryFolder root;
  write_text(root.path("proc/self/cgroup"), "0::/outer/inner\n");
  write_text(root.path("sys/fs/cgroup/outer/memory.max"), "2000\n");
  write_text(root.path("sys/fs/cgroup/outer/memory.current"), "500\n");
  write_text(root.path("sys/fs/cgroup/outer/inner/memory.max"), "max\n");
  EXPECT_EQ(cgroup_memory(root.path()), std::make_pair(2000L, 500L));
}

TEST(CgroupMemory, HasNoLimitWhereThereIsNone) {
  const TemporaryFolder root;
  write_text(root.path("sys/fs/cgroup/memory/memory.limit_in_bytes"),
             "9223372036854771712\n");
  EXPECT_EQ(cgroup_memory(root.path()),
            std::make_pair(HostFacts::kNoLimit, 0L));
}

TEST(HostFacts, NameTheDriverOfEitherKernelModule) {
  const TemporaryFolder root;
  const auto driver_of = [&](const char* line) {
    write_text(root.path("proc/driver/nvidia/version"), line);
    return gather_host_facts(root.path()).cuda_driver;
  };
  EXPECT_EQ(driver_of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
                      "570.86.15  Thu Jan 23 22:50:36 UTC 2025\n"),
            "570.86.15");
  EXPECT_EQ(driver_of("NVRM version: NVIDIA UNIX Open Kernel Module for "
                      "x86_64  580.159.04  Release Build  (root@host)\n"),
            "580.159.04");
}

}  // namespace
}  // namespace lockstep::tools
