// Modules and programs of the generator: the same ones in each run.
// `make fuzz-training` tries others.
// Tier: full. It draws programs for a while.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/differential/expectations.h"
#include "tests/differential/generator.h"

namespace lockstep::differential {
namespace {

/// Neither plain LibTorch nor Lockstep refuses more than a third of them.
void expect_most_are_compared(const std::vector<NamedCase>& cases) {
  EXPECT_GT(expect_no_findings(cases) * 3, cases.size() * 2);
}

void expect_modules(const std::string& kind, uint64_t seed, size_t count,
                    bool has_processes = false) {
  std::vector<NamedCase> cases;
  for (size_t i = 0; i < count; ++i) {
    cases.push_back(
        {kind + " seed " + std::to_string(seed + i), generate(kind, seed + i)});
    cases.back().definition.has_processes = has_processes;
  }
  expect_most_are_compared(cases);
}

/// Tries the first `count` programs that break no rule. The corpus has each
/// kind of those that break one.
void expect_programs(const std::string& kind, size_t count) {
  std::vector<NamedCase> cases;
  for (uint64_t seed = 1; cases.size() < count; ++seed) {
    Case program = generate_program(kind, seed);
    if (breaks_contract(program)) continue;
    cases.push_back({"program of " + kind + " seed " + std::to_string(seed),
                     std::move(program)});
  }
  expect_most_are_compared(cases);
}

TEST(RandomPrograms, ModulesInDataParallelArePlainLibTorch) {
  expect_modules("dp", 1, 1200);
}

TEST(RandomPrograms, ModulesOnRanksOfDataParallelArePlainLibTorch) {
  expect_modules("world", 1, 500);
}

TEST(RandomPrograms, ModulesInDistributedDataParallelArePlainLibTorch) {
  expect_modules("ddp", 1, 500);
}

TEST(RandomPrograms, OfDataParallelArePlainLibTorchOrRefused) {
  expect_programs("dp", 400);
}

TEST(RandomPrograms, OfRanksArePlainLibTorchOrRefused) {
  expect_programs("shm", 200);
  expect_programs("tcp", 100);
}

TEST(RandomPrograms, OfDistributedDataParallelArePlainLibTorchOrRefused) {
  expect_programs("ddp", 200);
}

TEST(RandomModules, OnRanksInProcessesArePlainLibTorch) {
  expect_modules("world", 2000, 4, /*has_processes=*/true);
  expect_modules("ddp", 2000, 4, /*has_processes=*/true);
}

}  // namespace
}  // namespace lockstep::differential
