#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/environment.h"
#include "lockstep/control/control_block.h"

namespace lockstep {

/// More ranks than any job has. A larger number is an error.
inline constexpr int kMaxRanks = 1 << 20;

// Read the variables of each launcher. They return nothing if another launcher
// started this process, and no address if the world is only this process. They
// throw InvalidArgument.
std::optional<Environment> torchrun_environment();
std::optional<Environment> openmpi_environment();
std::optional<Environment> slurm_environment();

/// Replaces the place given by the environment, because this process continues
/// with a later attempt of its job. Must be called by one thread at a time.
void set_assignment(const control::RankAssignment& assignment);

/// Returns the variable `name` as a number in [least, most]. Throws
/// InvalidArgument for another value, and if it is missing, because `launcher`
/// sets it.
int launcher_number(const std::string& name, int least, int most,
                    const std::string& launcher);
/// Returns the variable `name`. Throws InvalidArgument if it is missing.
std::string launcher_text(const std::string& name, const std::string& launcher);

/// Returns candidate ports for the store of the job `run_id`, for launchers
/// that choose no port. They are the same on every rank, and below the ports
/// that the system gives to clients.
std::vector<uint16_t> candidate_ports(const std::string& run_id);

/// Returns the first host of a list in Slurm's format: "node03" for
/// "node[03-05,9],login". If `list` is malformed, throws InvalidArgument naming
/// `variable`, the source of the list.
std::string first_host(std::string_view list, std::string_view variable);

/// Returns the number of ranks of node `node` in a list in Slurm's format:
/// "2(x3),1" is 2, 2, 2, 1. Writes the number of ranks of all nodes to `total`.
/// Throws InvalidArgument naming `variable` if `list` is malformed or has no
/// such node.
int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total);

}  // namespace lockstep
