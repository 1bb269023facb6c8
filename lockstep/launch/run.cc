#include "lockstep/launch/run.h"

#include <csignal>
#include <exception>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/agent/agent.h"
#include "lockstep/launch/agent/agreement.h"
#include "lockstep/launch/agent/signal_watch.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/launch/options/program_command.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {
namespace {

// Thrown when a signal arrives before any worker was started.
struct Stopped {
  int signal;
};

int run_agent(const RunOptions& options,
              const std::vector<std::string>& command, Rendezvous& rendezvous,
              SignalWatch& signals) {
  try {
    return Agent(options, command, rendezvous, signals).run();
  } catch (const std::exception& error) {
    if (options.nodes > 1) {
      share_failures(rendezvous, {.why = text_of(error)}, {}, /*timeout_s=*/0);
      leave(rendezvous);
    }
    throw;
  }
}

// A child inherits an ignored SIGCHLD from its parent. The kernel would then
// reap workers automatically, and the agent could not learn how they ended.
void keep_ends_of_workers() { std::signal(SIGCHLD, SIG_DFL); }

}  // namespace

int run(const RunOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) {
    throw InvalidArgument("launch", {.code = ErrorCode::kProcessStart,
                                     .what = "no program to run"});
  }
  keep_ends_of_workers();
  // Signals are blocked before the store starts its threads, because threads
  // inherit the mask.
  std::vector<int> handled = options.signals;
  handled.push_back(SIGUSR1);
  SignalWatch signals(handled);
  try {
    // A missing program is detected before the other nodes wait for this one.
    find_program(command.front(), options.environment);
    Rendezvous rendezvous = join_rendezvous(options, [&] {
      if (const auto signal = signals.take()) throw Stopped{*signal};
    });
    return run_agent(options, command, rendezvous, signals);
  } catch (const Stopped& stopped) {
    log_info("launch", fmt::format("got {} before all nodes had joined",
                                   signal_name(stopped.signal)));
    return 128 + stopped.signal;
  }
}

}  // namespace lockstep::launch
