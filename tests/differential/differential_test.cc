#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "tests/differential/check.h"
#include "tests/differential/generator.h"
#include "tests/differential/isolation.h"

namespace lockstep::differential {
namespace {

// Deadline of a case in seconds, on a busy machine.
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

/// Tries the first `count` programs that break no rule. Of those that break one
/// the corpus has each kind.
void expect_none_of_programs(const std::string& kind, size_t count) {
  std::vector<Case> cases;
  std::vector<std::string> names;
  for (uint64_t seed = 1; cases.size() < count; ++seed) {
    Case of = generate_program(kind, seed);
    if (breaks_contract(of)) continue;
    cases.push_back(std::move(of));
    names.push_back("program of " + kind + " seed " + std::to_string(seed));
  }
  EXPECT_GT(expect_none(cases, names) * 3, cases.size() * 2);
}

/// Returns the kept cases with this prefix of their names, by name.
std::map<std::string, Case> kept_cases(const std::string& prefix) {
  std::map<std::string, Case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(
           LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/training")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) != 0) continue;
    std::ifstream stream(entry.path());
    std::stringstream text;
    text << stream.rdbuf();
    cases[name] = case_of_text(text.str());
  }
  EXPECT_FALSE(cases.empty());
  return cases;
}

/// Returns the verdict on `of`, from a process of its own.
Verdict end_of(const Case& of) {
  Verdict end;
  run_isolated(
      1, kDeadline, [&](size_t) { return check(of); },
      [&](size_t, const Verdict& verdict) {
        end = verdict;
        return true;
      });
  return end;
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

TEST(Differential, ProgramsOfDataParallelArePlainLibTorchOrRefused) {
  expect_none_of_programs("dp", 400);
}

TEST(Differential, ProgramsOfRanksArePlainLibTorchOrRefused) {
  expect_none_of_programs("shm", 200);
  expect_none_of_programs("tcp", 100);
}

TEST(Differential, ProgramsOfDistributedDataParallelArePlainLibTorchOrRefused) {
  expect_none_of_programs("ddp", 200);
}

TEST(Differential, FindsNothingAnyMoreInTheCorpus) {
  std::vector<Case> cases;
  std::vector<std::string> names;
  for (const auto& [name, of] : kept_cases("")) {
    cases.push_back(of);
    names.push_back(name);
  }
  expect_none(cases, names);
}

TEST(Differential, FirstStepRefusesWhatWouldTrainWrongNumbers) {
  for (auto [name, of] : kept_cases("first_step_")) {
    const Verdict checked = end_of(of);
    EXPECT_EQ(checked.kind, Verdict::Kind::kRefused)
        << name << ": " << checked.category << ": " << checked.detail;
    of.verifies = false;
    const Verdict unchecked = end_of(of);
    EXPECT_TRUE(unchecked.is_finding()) << name << ": " << unchecked.category;
    EXPECT_EQ(unchecked.category, "difference")
        << name << ": " << unchecked.detail;
  }
}

TEST(Differential, FirstStepWarnsOfWhatItCannotCheck) {
  for (const auto& [name, of] : kept_cases("warned_")) {
    const Verdict verdict = end_of(of);
    EXPECT_EQ(verdict.category, kWarned) << name << ": " << verdict.detail;
  }
}

TEST(Differential, RefusesInTheCorpusWhatItMust) {
  for (const auto& [name, of] : kept_cases("refused_")) {
    const Verdict verdict = end_of(of);
    EXPECT_EQ(verdict.kind, Verdict::Kind::kRefused)
        << name << ": " << verdict.category << ": " << verdict.detail;
  }
}

TEST(Differential, CasesAreTheSameWhenTheyAreReadAgain) {
  for (const std::string kind : {"dp", "world", "ddp"}) {
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      const std::string text = to_text(generate(kind, seed));
      EXPECT_EQ(to_text(case_of_text(text)), text);
      EXPECT_EQ(to_text(generate(kind, seed)), text);
    }
  }
  for (const std::string kind : {"dp", "shm", "tcp", "ddp"}) {
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      const std::string text = to_text(generate_program(kind, seed));
      EXPECT_EQ(to_text(case_of_text(text)), text);
      EXPECT_EQ(to_text(generate_program(kind, seed)), text);
    }
  }
}

}  // namespace
}  // namespace lockstep::differential
