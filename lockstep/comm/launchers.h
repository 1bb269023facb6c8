#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/environment.h"
#include "lockstep/control/control_block.h"

namespace lockstep {

/// More ranks than any job has. A larger number is a mistake.
inline constexpr int kMostRanks = 1 << 20;

// What each launcher tells this process; nothing if another launcher started
// it. There is no address if the world is this process alone. They throw
// InvalidArgument.
std::optional<Environment> torchrun_environment();
std::optional<Environment> openmpi_environment();
std::optional<Environment> slurm_environment();

/// Replaces the place that the environment says: this process goes on with a
/// later attempt of its job. One thread may call this at a time.
void set_assignment(const control::RankAssignment& assignment);

/// The variable `name` as a number in [least, most]. Throws InvalidArgument for
/// another value, and if it is missing, because `launcher` sets it.
int launcher_number(const std::string& name, int least, int most,
                    const std::string& launcher);
/// The variable `name`. Throws InvalidArgument if it is missing.
std::string launcher_text(const std::string& name, const std::string& launcher);

/// For launchers that choose no port: candidates for the port of the store of
/// the job `run_id`. They are the same on every rank, and below the ports that
/// the system gives to clients.
std::vector<uint16_t> candidate_ports(const std::string& run_id);

/// The first host of a list as Slurm writes it: "node03" of
/// "node[03-05,9],login". Throws InvalidArgument if `list` is malformed, which
/// names `variable`, where the list is from.
std::string first_host(std::string_view list, std::string_view variable);

/// How many ranks node `node` has in a list as Slurm writes it: "2(x3),1" is
/// 2, 2, 2, 1. `total` gets the number of ranks of all nodes. Throws
/// InvalidArgument, which names `variable`, if `list` is malformed or has no
/// such node.
int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total);

}  // namespace lockstep
