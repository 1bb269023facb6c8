#include "tests/differential/expectations.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/differential/check.h"
#include "tests/differential/isolation.h"

namespace lockstep::differential {

namespace {

// Deadline of a case in seconds, on a busy machine.
constexpr double kDeadline = 120;

std::filesystem::path folder() {
  return LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/training";
}

std::string text_of(const NamedCase& of, const Verdict& verdict) {
  return of.name + ": " + verdict.category + ": " + verdict.detail;
}

std::vector<Verdict> verdicts_without_findings(
    const std::vector<NamedCase>& cases) {
  std::vector<Verdict> verdicts = verdicts_on(cases);
  EXPECT_EQ(verdicts.size(), cases.size());
  for (size_t i = 0; i < verdicts.size(); ++i) {
    EXPECT_FALSE(verdicts[i].is_finding())
        << text_of(cases[i], verdicts[i])
        << "\nas `bin/test_differential fuzz --replay FILE` has it with\n"
        << to_text(cases[i].definition);
  }
  return verdicts;
}

}  // namespace

NamedCase kept_case(const std::string& name) {
  std::ifstream stream(folder() / (name + ".case"));
  if (!stream) throw std::invalid_argument("no such case: " + name);
  std::stringstream text;
  text << stream.rdbuf();
  return {name, case_of_text(text.str())};
}

std::vector<NamedCase> kept_cases(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const std::string name = entry.path().stem().string();
    if (name.starts_with(prefix)) names.push_back(name);
  }
  EXPECT_FALSE(names.empty()) << prefix;
  std::sort(names.begin(), names.end());
  std::vector<NamedCase> cases;
  for (const std::string& name : names) cases.push_back(kept_case(name));
  return cases;
}

std::vector<Verdict> verdicts_on(const std::vector<NamedCase>& cases) {
  std::vector<Verdict> verdicts;
  const bool has_processes = std::any_of(
      cases.begin(), cases.end(),
      [](const NamedCase& each) { return each.definition.has_processes; });
  run_isolated(
      cases.size(), kDeadline,
      [&](size_t i) { return check(cases[i].definition); },
      [&](size_t, const Verdict& verdict) {
        verdicts.push_back(verdict);
        return true;
      },
      has_processes ? 1 : kTasksPerProcess);
  return verdicts;
}

size_t expect_no_findings(const std::vector<NamedCase>& cases) {
  const std::vector<Verdict> verdicts = verdicts_without_findings(cases);
  return static_cast<size_t>(std::count_if(
      verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
        return verdict.kind == Verdict::Kind::kPassed;
      }));
}

void expect_as_named(const std::vector<NamedCase>& cases) {
  const std::vector<Verdict> verdicts = verdicts_without_findings(cases);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const std::string& name = cases[i].name;
    const bool is_refused =
        name.starts_with("first_step_") || name.starts_with("refused_");
    if (name.starts_with("warned_")) {
      EXPECT_EQ(verdicts[i].category, kWarned)
          << text_of(cases[i], verdicts[i]);
    } else {
      EXPECT_EQ(verdicts[i].kind,
                is_refused ? Verdict::Kind::kRefused : Verdict::Kind::kPassed)
          << text_of(cases[i], verdicts[i]);
    }
  }
}

}  // namespace lockstep::differential
