// A few programs for each strategy, and all programs that the check of the
// first step must refuse.
#include <vector>

#include <gtest/gtest.h>

#include "tests/differential/expectations.h"
#include "tests/differential/generator.h"

namespace lockstep::differential {
namespace {

TEST(QuickPrograms, ArePlainLibTorch) {
  std::vector<NamedCase> cases;
  for (const char* const name :
       {"program_adds_to_the_gradients_that_are_there_dp5",
        "program_evaluates_loads_and_freezes_dp",
        "program_hook_sees_the_gradient_of_the_batch_dp5",
        "program_own_sgd_on_three_devices_dp",
        "program_shards_without_weight_dp5",
        "program_changed_member_dp",
        "program_changed_member_tcp",
        "program_each_of_four_ranks_steps_with_adam_shm",
        "program_evaluates_loads_and_freezes_shm",
        "program_own_optimizer_and_updates_in_turn_shm",
        "program_sums_all_at_the_next_synced_call_shm",
        "program_weights_have_the_bits_of_one_device_shm",
        "program_accumulates_and_clips_tcp",
        "program_evaluates_loads_and_freezes_tcp",
        "program_own_optimizer_and_updates_in_turn_tcp",
        "program_uneven_split_without_an_optimizer_tcp",
        "program_weights_have_the_bits_of_one_device_tcp4",
        "program_evaluates_loads_and_freezes_ddp",
        "program_steps_of_both_kinds_in_turn_ddp",
        "program_sums_all_at_the_next_synced_call_ddp3",
        "program_uneven_batches_under_no_sync_ddp_tcp",
        "program_weights_have_the_bits_of_one_device_ddp"}) {
    cases.push_back(kept_case(name));
  }
  expect_as_named(cases);
}

TEST(QuickPrograms, ThatWouldTrainWrongNumbersAreRefusedInTheFirstStep) {
  std::vector<NamedCase> cases = kept_cases("first_step_");
  expect_as_named(cases);
  for (NamedCase& each : cases) each.definition.verifies = false;
  const std::vector<Verdict> unchecked = verdicts_on(cases);
  ASSERT_EQ(unchecked.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(unchecked[i].is_finding()) << cases[i].name;
    EXPECT_EQ(unchecked[i].category, "difference")
        << cases[i].name << ": " << unchecked[i].detail;
  }
}

void expect_same_text(const Case& first, const Case& again) {
  const std::string text = to_text(first);
  EXPECT_EQ(to_text(case_of_text(text)), text);
  EXPECT_EQ(to_text(again), text);
}

TEST(QuickPrograms, AreTheSameWhenTheyAreReadAgain) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    for (const std::string kind : {"dp", "world", "ddp"}) {
      expect_same_text(generate(kind, seed), generate(kind, seed));
    }
    for (const std::string kind : {"dp", "shm", "tcp", "ddp"}) {
      expect_same_text(generate_program(kind, seed),
                       generate_program(kind, seed));
    }
  }
}

}  // namespace
}  // namespace lockstep::differential
