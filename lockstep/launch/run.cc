#include "lockstep/launch/run.h"

#include <csignal>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
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

// Returns the exit code, or nullopt if the job may go on without this node,
// which was cut off.
std::optional<int> run_agent(const RunOptions& options,
                             const std::vector<std::string>& command,
                             Rendezvous& rendezvous, SignalWatch& signals) {
  const bool may_rejoin = options.is_elastic() && !rendezvous.serves_store;
  try {
    Agent agent(options, command, rendezvous, signals);
    const int code = agent.run();
    if (may_rejoin && agent.is_cut_off()) return std::nullopt;
    return code;
  } catch (const CutOff& error) {
    log_error("launch", text_of(error));
    if (may_rejoin) return std::nullopt;
    return kExitPreempted;
  } catch (const std::exception& error) {
    if (options.nodes > 1) {
      share_failures(rendezvous, {.why = text_of(error)}, {}, /*timeout_s=*/0);
      leave(rendezvous);
    }
    throw;
  }
}

// Joins the job again from which this node was cut off, if its store still
// runs.
std::optional<Rendezvous> rejoin(const RunOptions& options,
                                 const CheckStop& check_stop,
                                 const store::Token& incarnation) {
  log_info("launch", "this node was cut off from the job, and joins it again");
  try {
    return join_rendezvous(options, check_stop, incarnation);
  } catch (const Error& error) {
    log_error("launch", text_of(error));
    return std::nullopt;
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
    const CheckStop check_stop = [&] {
      if (const auto signal = signals.take()) throw Stopped{*signal};
    };
    std::optional<Rendezvous> rendezvous(join_rendezvous(options, check_stop));
    for (;;) {
      if (const auto code = run_agent(options, command, *rendezvous, signals)) {
        return *code;
      }
      const store::Token incarnation = rendezvous->store.incarnation();
      rendezvous.reset();
      auto next = rejoin(options, check_stop, incarnation);
      if (!next) return kExitPreempted;
      rendezvous.emplace(std::move(*next));
    }
  } catch (const CutOff& error) {
    log_error("launch", text_of(error));
    return kExitPreempted;
  } catch (const Stopped& stopped) {
    log_info("launch", fmt::format("got {} before all nodes had joined",
                                   signal_name(stopped.signal)));
    return 128 + stopped.signal;
  }
}

}  // namespace lockstep::launch
