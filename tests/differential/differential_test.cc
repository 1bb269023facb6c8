#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "tests/differential/check.h"
#include "tests/differential/generator.h"
#include "tests/differential/isolation.h"

namespace lockstep::differential {
namespace {

// Of a case, on a machine that does much else.
constexpr double kDeadline = 120;

/// Runs the cases in processes of their own; a finding is a failure.
/// Returns how many were compared to their end.
size_t expect_none(const std::vector<Case>& cases,
                   const std::vector<std::string>& names) {
  size_t done = 0;
  size_t compared = 0;
  run_isolated(
      cases.size(), kDeadline, [&](size_t i) { return check(cases[i]); },
      [&](size_t i, const Verdict& verdict) {
        EXPECT_FALSE(verdict.is_finding())
            << names[i] << ": " << verdict.category << ": " << verdict.detail
            << "\nas `bin/test_differential fuzz --replay FILE` has it with\n"
            << to_text(cases[i]);
        ++done;
        if (verdict.kind == Verdict::Kind::kPassed) ++compared;
        return true;
      });
  EXPECT_EQ(done, cases.size());
  return compared;
}

void expect_none(const std::string& kind, uint64_t seed, size_t count,
                 bool has_processes = false) {
  std::vector<Case> cases;
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    cases.push_back(generate(kind, seed + i));
    cases.back().has_processes = has_processes;
    names.push_back(kind + " seed " + std::to_string(seed + i));
  }
  // Neither plain LibTorch nor Lockstep refuses more than some of them.
  EXPECT_GT(expect_none(cases, names) * 3, cases.size() * 2);
}

TEST(Differential, DataParallelIsPlainLibTorch) { expect_none("dp", 1, 1200); }

TEST(Differential, RanksOfDataParallelArePlainLibTorch) {
  expect_none("world", 1, 500);
}

TEST(Differential, DistributedDataParallelIsPlainLibTorch) {
  expect_none("ddp", 1, 500);
}

TEST(Differential, RanksInProcessesArePlainLibTorch) {
  expect_none("world", 2000, 4, true);
  expect_none("ddp", 2000, 4, true);
}

TEST(Differential, FindsNothingAnyMoreInTheCorpus) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/training")) {
    files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<Case> cases;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    std::stringstream text;
    text << stream.rdbuf();
    cases.push_back(case_of_text(text.str()));
  }
  EXPECT_FALSE(cases.empty());
  expect_none(cases, files);
}

TEST(Differential, CasesAreTheSameWhenTheyAreReadAgain) {
  for (const std::string kind : {"dp", "world", "ddp"}) {
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      const std::string text = to_text(generate(kind, seed));
      EXPECT_EQ(to_text(case_of_text(text)), text);
      EXPECT_EQ(to_text(generate(kind, seed)), text);
    }
  }
}

}  // namespace
}  // namespace lockstep::differential
