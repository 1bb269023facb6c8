// All kept cases, apart from those of QuickPrograms' check of the first step.
// Tier: full. It replays all programs of the corpus.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tests/differential/expectations.h"

namespace lockstep::differential {
namespace {

TEST(Corpus, IsPlainLibTorchOrRefusedAsItsNamesSay) {
  std::vector<NamedCase> cases = kept_cases("");
  std::erase_if(cases, [](const NamedCase& each) {
    return each.name.starts_with("first_step_");
  });
  expect_as_named(cases);
}

}  // namespace
}  // namespace lockstep::differential
