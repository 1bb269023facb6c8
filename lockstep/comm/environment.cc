#include "lockstep/comm/environment.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/launchers.h"

namespace lockstep {
namespace {

// torchrun writes "True", as Python does.
bool is_true(const std::string& name) {
  std::string text = env(name).value_or("");
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "1";
}

// The place of this process in the latest attempt, if it took part in more than
// one.
std::optional<control::RankAssignment> new_assignment;

std::vector<uint16_t> user_port() {
  const auto port = env_integer("MASTER_PORT", 1, UINT16_MAX);
  if (!port) return {};
  return {static_cast<uint16_t>(*port)};
}

std::string torchrun_id(int64_t attempt) {
  // The agent's store outlives the ranks of an attempt that failed.
  return fmt::format("{}.{}", env("TORCHELASTIC_RUN_ID").value_or("torchrun"),
                     attempt);
}

void read_place(const std::string& launcher, Environment& environment) {
  // Both are needed: if one were missing, every rank would start a world of
  // size one.
  environment.world_size =
      launcher_number("WORLD_SIZE", 1, kMaxRanks, launcher);
  environment.rank =
      launcher_number("RANK", 0, environment.world_size - 1, launcher);
  if (environment.world_size == 1) return;
  environment.local_world_size =
      launcher_number("LOCAL_WORLD_SIZE", 1, environment.world_size, launcher);
  environment.local_rank = launcher_number(
      "LOCAL_RANK", 0,
      std::min(environment.local_world_size - 1, environment.rank), launcher);
  environment.node_rank = static_cast<int>(
      env_integer("GROUP_RANK", 0, environment.rank)
          .value_or(environment.rank / environment.local_world_size));
}

void move_to(const control::RankAssignment& assignment,
             Environment& environment) {
  environment.rank = assignment.rank;
  environment.world_size = assignment.world_size;
  environment.local_rank = assignment.local_rank;
  environment.local_world_size = assignment.local_world_size;
  environment.node_rank = assignment.node_rank;
  environment.run_id = torchrun_id(assignment.attempt);
}

}  // namespace

int launcher_number(const std::string& name, int least, int most,
                    const std::string& launcher) {
  launcher_text(name, launcher);
  return static_cast<int>(*env_integer(name, least, most));
}

std::string launcher_text(const std::string& name,
                          const std::string& launcher) {
  if (auto value = env(name)) return *value;
  throw InvalidArgument(
      "env", {.code = ErrorCode::kBadVariable,
              .what = "the variable " + name + " is missing",
              .expected = "all that " + launcher + " sets",
              .fix = "start the ranks with `lockstep run`, torchrun, srun or "
                     "mpirun, or set it"});
}

std::vector<uint16_t> candidate_ports(const std::string& run_id) {
  constexpr uint32_t kFirst = 20'000;
  constexpr uint32_t kCount = 12'000;
  // Coprime to kCount, so that all candidates differ.
  constexpr uint32_t kStep = 1511;
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : run_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  }
  std::vector<uint16_t> ports;
  for (uint32_t k = 0; k < 8; ++k) {
    ports.push_back(
        static_cast<uint16_t>(kFirst + (hash % kCount + k * kStep) % kCount));
  }
  return ports;
}

std::optional<Environment> torchrun_environment() {
  if (!env("RANK") && !env("WORLD_SIZE")) return std::nullopt;
  const std::string launcher = "torchrun";
  Environment result;
  result.launcher = launcher;
  result.run_id =
      torchrun_id(env_integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0));
  result.has_agent_store = is_true("TORCHELASTIC_USE_AGENT_STORE");
  if (new_assignment) {
    move_to(*new_assignment, result);
  } else {
    read_place(launcher, result);
  }
  if (result.world_size == 1) return result;
  result.master_addr = launcher_text("MASTER_ADDR", launcher);
  launcher_text("MASTER_PORT", launcher);
  result.master_ports = user_port();
  return result;
}

Environment read_environment() {
  // mpirun comes before srun, because it starts its daemons on other hosts with
  // srun, whose variables the ranks inherit.
  auto found = torchrun_environment();
  if (!found) found = openmpi_environment();
  if (!found) found = slurm_environment();
  Environment result = found.value_or(Environment());
  if (result.world_size == 1) {
    result.master_addr.clear();
    result.master_ports.clear();
    result.has_agent_store = false;
    return result;
  }
  if (const auto address = env("MASTER_ADDR")) result.master_addr = *address;
  if (auto port = user_port(); !port.empty()) result.master_ports = port;
  return result;
}

void set_assignment(const control::RankAssignment& assignment) {
  new_assignment = assignment;
}

}  // namespace lockstep
