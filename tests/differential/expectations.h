#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/differential/case.h"
#include "tests/differential/verdict.h"

// Expectations of the tests about cases. A case runs in a process that is
// forked from the test and has no threads of LibTorch yet, so that a crash or a
// hang is a failure of one case. The process does not load LibTorch again.
namespace lockstep::differential {

struct NamedCase {
  std::string name;
  Case definition;
};

/// Returns the kept case in tests/fuzz/corpus/training/NAME.case.
NamedCase kept_case(const std::string& name);
/// Returns the kept cases with this prefix of their names, by name.
std::vector<NamedCase> kept_cases(const std::string& prefix);

/// Checks the cases in order, and returns a verdict on each.
std::vector<Verdict> verdicts_on(const std::vector<NamedCase>& cases);

/// Expects no finding. Returns the number of cases that were compared to their
/// end, and not refused.
size_t expect_no_findings(const std::vector<NamedCase>& cases);

/// Expects that kept cases end as their names say: a case `first_step_` or
/// `refused_` is refused, a case `warned_` gets a warning, and all others are
/// compared to their end.
void expect_as_named(const std::vector<NamedCase>& cases);

}  // namespace lockstep::differential
