// The states of a sum of gradients, transition by transition.
#include "lockstep/parallel/exchange/gradient_sync_state.h"

#include <array>
#include <optional>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {

// Printed by GoogleTest.
void PrintTo(SyncPhase phase, std::ostream* out) {
  constexpr std::array kNames{"kIdle", "kOpen", "kFlushed", "kFinished",
                              "kAbandoned"};
  *out << kNames[static_cast<size_t>(phase)];
}

void PrintTo(SyncOutcome outcome, std::ostream* out) {
  constexpr std::array kNames{"kDone", "kComplete", "kRepeated", "kSendRest",
                              "kIllegal"};
  *out << kNames[static_cast<size_t>(outcome)];
}

namespace sync_state_test {
namespace {

using enum SyncEvent;
using enum SyncPhase;
using enum SyncOutcome;
using enum GradientState;

using Expected = std::vector<int64_t>;

/// A state, and the outcome of each event that led to it.
struct Steps {
  GradientSyncState state;
  std::vector<SyncOutcome> outcomes;

  Steps& then(SyncEvent event, size_t p = 0, const Expected& expected = {}) {
    outcomes.push_back(state.handle(event, p, expected));
    return *this;
  }
  std::vector<GradientState> gradients() const {
    std::vector<GradientState> states;
    for (const auto& gradient : state.gradients) {
      states.push_back(gradient.state);
    }
    return states;
  }
};

Steps begun(const Expected& expected) {
  Steps steps;
  steps.then(kBegin, 0, expected);
  return steps;
}

/// All states of a step with one parameter.
Steps idle() { return {}; }
Steps open_awaited() { return begun({1}); }
Steps open_kept() { return begun({kUntilFlush}).then(kArrive, 0); }
Steps open_ready() { return open_awaited().then(kArrive, 0); }
Steps open_sent() { return open_ready().then(kSend, 0); }
Steps flushed_ready() { return open_awaited().then(kFlush); }
Steps flushed_sent() { return open_sent().then(kFlush); }
Steps finished() { return flushed_sent().then(kFinish); }
Steps abandoned() { return open_awaited().then(kAbandon); }

/// Result of an event: the phase, the state of the parameter, the outcome.
struct Row {
  SyncPhase phase;
  GradientState gradient;
  SyncOutcome outcome;
  bool operator==(const Row&) const = default;
};

void PrintTo(const Row& row, std::ostream* out) {
  lockstep::PrintTo(row.phase, out);
  *out << " with gradient state " << static_cast<int>(row.gradient) << ": ";
  lockstep::PrintTo(row.outcome, out);
}

const Expected kOne{1};
constexpr std::array kEvents{kBegin,  kArrive, kSend,   kFlush,
                             kFinish, kTake,   kAbandon};

/// All rows of a state, in the order of kEvents. An empty row stands for an
/// illegal event.
void expect_rows(const Steps& from,
                 const std::vector<std::optional<Row>>& rows) {
  ASSERT_EQ(rows.size(), kEvents.size());
  for (size_t i = 0; i < kEvents.size(); ++i) {
    GradientSyncState state = from.state;
    const SyncOutcome outcome = state.handle(kEvents[i], 0, kOne);
    if (!rows[i]) {
      EXPECT_EQ(outcome, kIllegal) << "event " << i;
      EXPECT_EQ(state, from.state) << "event " << i << " changed the state";
      continue;
    }
    const GradientState gradient =
        state.gradients.empty() ? kAwaited : state.gradients[0].state;
    EXPECT_EQ((Row{state.phase, gradient, outcome}), *rows[i]) << "event " << i;
  }
}

constexpr std::nullopt_t kNo = std::nullopt;

//                      BeginStep, Arrive, Send, Flush, Finish, TakeSums,
//                      Abandon

TEST(GradientSyncState, BetweenStepsOnlyBegins) {
  expect_rows(idle(), {Row{kOpen, kAwaited, kDone}, kNo, kNo, kNo, kNo, kNo,
                       Row{kIdle, kAwaited, kDone}});
}

TEST(GradientSyncState, WaitsForAGradient) {
  expect_rows(open_awaited(), {kNo, Row{kOpen, kReady, kComplete}, kNo,
                               Row{kFlushed, kReady, kDone}, kNo, kNo,
                               Row{kAbandoned, kAwaited, kSendRest}});
}

TEST(GradientSyncState, KeepsAGradientOfUnknownNumber) {
  expect_rows(open_kept(), {kNo, Row{kOpen, kAwaited, kDone}, kNo,
                            Row{kFlushed, kReady, kDone}, kNo, kNo,
                            Row{kAbandoned, kAwaited, kDone}});
}

TEST(GradientSyncState, AGradientThatIsNotSentMayGrow) {
  expect_rows(open_ready(),
              {kNo, Row{kOpen, kReady, kDone}, Row{kOpen, kSent, kDone},
               Row{kFlushed, kReady, kDone}, kNo, kNo,
               Row{kAbandoned, kReady, kSendRest}});
}

TEST(GradientSyncState, AGradientThatWasSentMustNotGrow) {
  expect_rows(open_sent(), {kNo, Row{kOpen, kSent, kRepeated}, kNo,
                            Row{kFlushed, kSent, kDone}, kNo, kNo,
                            Row{kAbandoned, kSent, kDone}});
}

TEST(GradientSyncState, AfterTheBackwardSendsTheRest) {
  expect_rows(flushed_ready(), {kNo, kNo, Row{kFlushed, kSent, kDone}, kNo, kNo,
                                kNo, Row{kAbandoned, kReady, kSendRest}});
}

TEST(GradientSyncState, FinishesWhenAllIsSent) {
  expect_rows(flushed_sent(),
              {kNo, kNo, kNo, kNo, Row{kFinished, kSummed, kDone}, kNo,
               Row{kAbandoned, kSent, kDone}});
}

TEST(GradientSyncState, HasSumsUntilTheyAreTaken) {
  expect_rows(finished(), {kNo, kNo, kNo, kNo, kNo, Row{kIdle, kSummed, kDone},
                           Row{kAbandoned, kSummed, kDone}});
}

TEST(GradientSyncState, StartsOverAfterAStepThatFailed) {
  expect_rows(abandoned(), {Row{kOpen, kAwaited, kDone}, kNo, kNo, kNo, kNo,
                            kNo, Row{kAbandoned, kAwaited, kDone}});
}

TEST(GradientSyncState, CountsAsManyGradientsAsExpected) {
  Steps steps = begun({3, 1});
  steps.then(kArrive, 0).then(kArrive, 1).then(kArrive, 0).then(kArrive, 0);
  EXPECT_EQ(steps.outcomes,
            (std::vector{kDone, kDone, kComplete, kDone, kComplete}));
  EXPECT_EQ(steps.gradients(), (std::vector{kReady, kReady}));
  EXPECT_EQ(steps.state.order, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(steps.state.repeated, std::nullopt);
}

TEST(GradientSyncState, AParameterWithoutAGradientIsReadyFromTheStart) {
  Steps steps = begun({0, 1});
  EXPECT_EQ(steps.gradients(), (std::vector{kReady, kAwaited}));
  steps.then(kSend, 0).then(kArrive, 0);
  EXPECT_EQ(steps.outcomes, (std::vector{kDone, kDone, kRepeated}));
  EXPECT_EQ(steps.state.repeated, 0U);
}

TEST(GradientSyncState, KeepsGradientsOfUnknownNumberUntilFlush) {
  Steps steps = begun({kUntilFlush, kUntilFlush, kUntilFlush});
  steps.then(kArrive, 0).then(kArrive, 2);
  EXPECT_EQ(steps.state.repeated, std::nullopt);
  steps.then(kArrive, 2);
  EXPECT_EQ(steps.outcomes, (std::vector{kDone, kDone, kDone, kDone}));
  EXPECT_EQ(steps.gradients(), (std::vector{kAwaited, kAwaited, kAwaited}));
  EXPECT_EQ(steps.state.gradients[2].arrived, 2);
  EXPECT_EQ(steps.state.gradients[1].arrived, 0);
  EXPECT_EQ(steps.state.order, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(steps.state.repeated, 2U);
  steps.then(kSend, 2);
  EXPECT_EQ(steps.outcomes.back(), kIllegal);
  steps.then(kFlush);
  EXPECT_EQ(steps.gradients(), (std::vector{kReady, kReady, kReady}));
}

TEST(GradientSyncState, RemembersTheFirstGradientThatCameAgain) {
  Steps steps = begun({1, 1});
  steps.then(kArrive, 1).then(kSend, 1).then(kArrive, 0).then(kSend, 0);
  steps.then(kArrive, 1).then(kArrive, 0);
  EXPECT_EQ(steps.outcomes.back(), kRepeated);
  EXPECT_EQ(steps.state.repeated, 1U);
}

TEST(GradientSyncState, DoesNotFinishBeforeAllIsSent) {
  Steps steps = begun({1, 1});
  steps.then(kArrive, 0).then(kSend, 0).then(kFlush).then(kFinish);
  EXPECT_EQ(steps.outcomes.back(), kIllegal);
  steps.then(kSend, 1).then(kFinish);
  EXPECT_EQ(steps.outcomes.back(), kDone);
  EXPECT_EQ(steps.gradients(), (std::vector{kSummed, kSummed}));
}

// In such a step, no rank sends anything before its Flush.
TEST(GradientSyncState, ARankThatFailsLeavesNobodyWaitingBeforeAnythingIsSent) {
  Steps steps = begun({kUntilFlush, kUntilFlush});
  steps.then(kArrive, 0);
  Steps later = steps;
  steps.then(kAbandon);
  EXPECT_EQ(steps.outcomes.back(), kDone);
  later.then(kFlush).then(kSend, 0).then(kAbandon);
  EXPECT_EQ(later.outcomes.back(), kSendRest);
}

TEST(GradientSyncState, ANewStepForgetsTheLastOne) {
  Steps steps = begun({1, 1});
  steps.then(kArrive, 0).then(kSend, 0).then(kArrive, 0).then(kAbandon);
  const Expected expected{2, kUntilFlush};
  steps.then(kBegin, 0, expected);
  EXPECT_EQ(steps.state, begun(expected).state);
}

}  // namespace
}  // namespace sync_state_test
}  // namespace lockstep
