// Modules and programs of the generator: the same ones in each run.
// `make fuzz-training` tries others.
// Tier: full. It draws programs for a while.
#include <functional>
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

/// Returns the first `count` programs of `kind` that `is_wanted` accepts.
std::vector<NamedCase> programs_with(
    const std::string& kind, size_t count,
    const std::function<bool(const Case&)>& is_wanted) {
  std::vector<NamedCase> cases;
  for (uint64_t seed = 1; cases.size() < count; ++seed) {
    Case program = generate_program(kind, seed);
    if (!is_wanted(program)) continue;
    cases.push_back({"program of " + kind + " seed " + std::to_string(seed),
                     std::move(program)});
  }
  return cases;
}

/// Tries the first `count` programs that break no rule. The corpus has each
/// kind of those that break one.
void expect_programs(const std::string& kind, size_t count) {
  expect_most_are_compared(programs_with(
      kind, count, [](const Case& of) { return !breaks_contract(of); }));
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

TEST(RandomPrograms, InWhichOneRankDiffersAreRefused) {
  for (const std::string kind : {"shm", "tcp", "ddp"}) {
    const auto cases = programs_with(kind, 60, has_one_rank_that_differs);
    // A few statements have no effect, such as a rate without a gradient.
    EXPECT_LT(expect_no_findings(cases) * 4, cases.size()) << kind;
  }
}

TEST(RandomPrograms, ThatChangeAMemberArePlainLibTorchOrRefused) {
  for (const std::string kind : {"dp", "shm", "tcp", "ddp"}) {
    expect_no_findings(programs_with(kind, 60, [](const Case& of) {
      return has_event(of, "change_member");
    }));
  }
}

TEST(RandomModules, OnRanksInProcessesArePlainLibTorch) {
  expect_modules("world", 2000, 4, /*has_processes=*/true);
  expect_modules("ddp", 2000, 4, /*has_processes=*/true);
}

}  // namespace
}  // namespace lockstep::differential
