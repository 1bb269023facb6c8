#include "lockstep/launch/agent/agent_state.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Targets = WorkerTeam::Targets;

// An agent without processes. `actions` contains what it would do.
class TestAgent {
 public:
  AgentContext context{.now_s = 100, .host = "alpha"};
  AgentState state;
  AgentActions actions;

  void handle(const AgentEvent& event) {
    auto next = next_state(state, event, context);
    state = next.state;
    actions = next.actions;
  }
  // Returns whether there is nothing to do.
  bool is_idle() const {
    return actions.signal == 0 && !actions.notifies_peers &&
           actions.announcement == Announcement::kNone;
  }
};

WorkersFailed failed(bool may_restart = true) {
  return {{.why = "rank 1 failed", .may_restart = may_restart}};
}

// Nodes join or leave.
PeerNews regroup() {
  return {.notice =
              Notice{.why = "another", .may_restart = true, .is_fault = false}};
}

TEST(AgentState, EndsAllWorkersWhenOneFailsAndNoRestartIsLeft) {
  TestAgent agent;
  agent.handle(failed());
  EXPECT_EQ(agent.state.phase, AgentPhase::kEnding);
  EXPECT_EQ(agent.state.reason, EndReason::kWorker);
  EXPECT_EQ(agent.actions.signal, SIGTERM);
  EXPECT_EQ(agent.actions.targets, Targets::kAll);
  EXPECT_EQ(agent.actions.announcement, Announcement::kNone);
  EXPECT_TRUE(agent.actions.notifies_peers);
  EXPECT_EQ(agent.state.notice.why, "rank 1 failed");
}

TEST(AgentState, KeepsWorkersThatWillWaitIfARestartIsLeft) {
  TestAgent agent;
  agent.context.has_restarts_left = true;
  agent.handle(failed());
  EXPECT_EQ(agent.actions.targets, Targets::kWillNotWait);
  EXPECT_EQ(agent.actions.announcement, Announcement::kAttemptOver);
  TestAgent preempted;
  preempted.context.has_restarts_left = true;
  preempted.handle(failed(/*may_restart=*/false));
  EXPECT_EQ(preempted.actions.targets, Targets::kAll);
}

TEST(AgentState, RegroupsWithoutARestart) {
  TestAgent agent;
  agent.handle(regroup());
  EXPECT_EQ(agent.actions.announcement, Announcement::kRegroup);
  EXPECT_EQ(agent.actions.targets, Targets::kWillNotWait);
  EXPECT_EQ(agent.state.reason, EndReason::kPeer);
}

TEST(AgentState, HasOneReasonAndTheFirstCounts) {
  TestAgent agent;
  agent.handle(failed());
  const AgentEvent later[] = {failed(), regroup(), OutputClosed{}};
  for (const AgentEvent& event : later) {
    agent.handle(event);
    EXPECT_TRUE(agent.is_idle());
    EXPECT_EQ(agent.state.reason, EndReason::kWorker);
    EXPECT_EQ(agent.state.notice.why, "rank 1 failed");
  }
}

TEST(AgentState, PassesASignalOnAndSaysSoToTheOtherNodes) {
  TestAgent agent;
  agent.handle(SignalCame{SIGINT});
  EXPECT_EQ(agent.actions.signal, SIGINT);
  EXPECT_EQ(agent.state.first_signal, SIGINT);
  EXPECT_EQ(agent.state.requested_signal, SIGINT);
  EXPECT_TRUE(agent.actions.notifies_peers);
  EXPECT_FALSE(agent.state.notice.may_restart);
  EXPECT_NE(agent.state.notice.why.find("alpha"), std::string::npos);
  EXPECT_NE(agent.state.notice.why.find("SIGINT"), std::string::npos);
}

TEST(AgentState, LeavesAJobThatCanGoOnWithoutItsNode) {
  TestAgent agent;
  agent.context.may_leave = true;
  agent.handle(SignalCame{SIGTERM});
  EXPECT_TRUE(agent.state.is_leaving);
  EXPECT_TRUE(agent.state.notice.may_restart);
  EXPECT_FALSE(agent.state.notice.is_fault);
  EXPECT_EQ(agent.actions.announcement, Announcement::kRegroup);
  // The agent's workers have nothing to wait for.
  agent.handle(JobConcluded());
  EXPECT_EQ(agent.actions.signal, SIGKILL);
  EXPECT_EQ(agent.actions.announcement, Announcement::kClosed);
}

TEST(AgentState, KillsWhenItIsAskedTwice) {
  TestAgent agent;
  agent.handle(SignalCame{SIGINT});
  agent.context.now_s += 10;
  agent.handle(SignalCame{SIGINT});
  EXPECT_EQ(agent.state.phase, AgentPhase::kKilling);
  EXPECT_EQ(agent.actions.signal, SIGKILL);
  EXPECT_EQ(agent.actions.targets, Targets::kAll);
  agent.handle(SignalCame{SIGINT});
  EXPECT_TRUE(agent.is_idle());
}

TEST(AgentState, KillsWhenASignalComesWhileWorkersEndForAnotherReason) {
  TestAgent agent;
  agent.handle(failed());
  agent.handle(SignalCame{SIGTERM});
  EXPECT_EQ(agent.state.phase, AgentPhase::kKilling);
  EXPECT_EQ(agent.state.reason, EndReason::kWorker);
}

// A scheduler sends its warning to the agent several times.
TEST(AgentState, PassesOnWhatBelongsToTheSameRequest) {
  TestAgent agent;
  agent.handle(SignalCame{SIGTERM});
  agent.context.now_s += 0.5;
  agent.handle(SignalCame{SIGTERM});
  EXPECT_EQ(agent.state.phase, AgentPhase::kEnding);
  EXPECT_EQ(agent.actions.signal, SIGTERM);
}

// Returns how long workers have from the first signal to SIGKILL.
double grace_of(TestAgent agent) {
  const double began_s = agent.context.now_s;
  for (int passed_s = 1; passed_s < 1000; ++passed_s) {
    agent.context.now_s = began_s + passed_s;
    agent.handle(Tick());
    if (agent.actions.signal == SIGKILL) return passed_s - 1;
  }
  return -1;
}

TEST(AgentState, GivesWorkersTheTimeThatTheReasonAsksFor) {
  TestAgent agent;
  EXPECT_EQ(grace_of(agent), -1) << "nobody asked them to end";
  agent.handle(failed());
  EXPECT_EQ(grace_of(agent), 5);

  TestAgent restarts;
  restarts.context.has_restarts_left = true;
  restarts.handle(failed());
  EXPECT_EQ(grace_of(restarts), 10);

  TestAgent signalled;
  signalled.handle(SignalCame{SIGTERM});
  EXPECT_EQ(grace_of(signalled), 30);

  TestAgent unheard;
  unheard.handle(OutputClosed{.why = "the disk is full", .exit_code = 1});
  EXPECT_EQ(grace_of(unheard), 30);

  TestAgent regroups;
  regroups.handle(regroup());
  EXPECT_EQ(grace_of(regroups), 60);
  regroups.context.grace_s = 2;
  EXPECT_EQ(grace_of(regroups), 2);
}

TEST(AgentState, KillsOnlyWorkersThatDoNotWait) {
  TestAgent agent;
  agent.context.has_restarts_left = true;
  agent.handle(failed());
  agent.context.now_s += 100;
  agent.handle(Tick());
  EXPECT_EQ(agent.actions.targets, Targets::kAtWork);
  agent.handle(Tick());
  EXPECT_TRUE(agent.is_idle()) << "once is enough";
}

TEST(AgentState, LetsWaitingWorkersExitAtTheEnd) {
  TestAgent agent;
  agent.context.has_restarts_left = true;
  agent.handle(failed());
  agent.context.now_s += 50;
  agent.handle(JobConcluded());
  EXPECT_EQ(agent.actions.announcement, Announcement::kClosed);
  EXPECT_EQ(agent.actions.signal, 0);
  agent.context.grace_s = 1000;  // applies to workers that are running
  EXPECT_EQ(grace_of(agent), 5);
  agent.handle(SignalCame{SIGTERM});
  EXPECT_EQ(agent.actions.signal, SIGKILL);
}

TEST(AgentState, TakesASignalBetweenAttemptsForTheReason) {
  TestAgent agent;
  agent.context.has_restarts_left = true;
  agent.handle(failed());
  agent.handle(SignalCameBetweenAttempts{SIGHUP});
  EXPECT_EQ(agent.state.reason, EndReason::kSignal);
  EXPECT_EQ(agent.state.first_signal, SIGHUP);
  EXPECT_TRUE(agent.is_idle()) << "there are no workers at work";
}

TEST(AgentState, ForgetsTheAttemptBefore) {
  TestAgent agent;
  agent.context.has_restarts_left = true;
  agent.handle(failed());
  agent.handle(PeerNews{.all_done = true});
  EXPECT_TRUE(agent.state.are_peers_done);
  const AgentState next = state_of_next_attempt(agent.state);
  EXPECT_EQ(next.phase, AgentPhase::kRunning);
  EXPECT_FALSE(next.is_ending());
  EXPECT_FALSE(next.are_peers_done);
  EXPECT_EQ(next.notice.why, "");
}

}  // namespace
}  // namespace lockstep::launch
