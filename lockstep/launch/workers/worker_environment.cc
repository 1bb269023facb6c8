#include "lockstep/launch/workers/worker_environment.h"

#include <fmt/ranges.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/launch/options/option_values.h"

namespace lockstep::launch {
namespace {

std::string joined(const std::vector<int>& signals) {
  std::string names;
  for (const int signal : signals) {
    names += (names.empty() ? "" : ",") + signal_name(signal);
  }
  return names;
}

}  // namespace

std::map<std::string, std::string> worker_variables(
    const RunOptions& options, const Group& group, const Endpoint& master,
    int local_rank, int attempt, size_t core_count,
    const std::string& error_file) {
  std::map<std::string, std::string> variables = options.environment;
  const auto set = [&](const char* name, const std::string& value) {
    variables[name] = value;
  };
  const auto number = [&](const char* name, int value) {
    set(name, std::to_string(value));
  };
  number("LOCAL_RANK", local_rank);
  number("RANK", group.first_rank() + local_rank);
  number("GROUP_RANK", group.node_rank);
  number("ROLE_RANK", group.first_role_rank() + local_rank);
  set("ROLE_NAME", options.role);
  number("LOCAL_WORLD_SIZE", options.workers);
  number("WORLD_SIZE", group.world_size());
  number("GROUP_WORLD_SIZE", static_cast<int>(group.nodes.size()));
  number("ROLE_WORLD_SIZE", group.role_world_size());
  set("MASTER_ADDR", master.host);
  number("MASTER_PORT", master.port);
  number("TORCHELASTIC_RESTART_COUNT", attempt);
  number("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  set("TORCHELASTIC_RUN_ID", options.run_id);
  // The agents' store requires a proof of the secret, which c10d::TCPStore
  // can't give.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", joined(options.signals));
  set("TORCHELASTIC_ERROR_FILE", error_file);
  if (options.pins_cores) {
    set(kCoresVariable, fmt::format("{}", fmt::join(allowed_cores(), ",")));
  }
  // A value that the user set is kept.
  if (!env("TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  }
  if (options.omp_threads > 0) {
    number("OMP_NUM_THREADS", options.omp_threads);
  } else if (!env("OMP_NUM_THREADS")) {
    variables.try_emplace("OMP_NUM_THREADS", std::to_string(core_count));
  }
  return variables;
}

}  // namespace lockstep::launch
