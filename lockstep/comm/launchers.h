#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/environment.h"
#include "lockstep/control/control_block.h"

namespace lockstep {

/// More than any job has; a number beyond is a mistake.
inline constexpr int kMostRanks = 1 << 20;

// What each launcher tells; nothing if it did not start this process. Without
// an address if the world is this process alone. Throw InvalidArgument.
std::optional<Environment> torchrun_environment();
std::optional<Environment> openmpi_environment();
std::optional<Environment> slurm_environment();

/// From now on this process has another place than its environment says: it
/// goes on with a later attempt of its job. For one thread.
void set_assignment(const control::RankAssignment& assignment);

/// The variable `name` as a number in [least, most]. Throws InvalidArgument
/// also if it is missing: `launcher` sets it.
int launcher_number(const std::string& name, int least, int most,
                    const std::string& launcher);
/// The variable `name`. Throws InvalidArgument if it is missing.
std::string launcher_text(const std::string& name, const std::string& launcher);

/// For launchers that hand out no port: candidates for the store of the job
/// `run_id`, the same on every rank, below those that the system gives to
/// clients.
std::vector<uint16_t> candidate_ports(const std::string& run_id);

/// The first host of a list as Slurm writes it: "node03" of
/// "node[03-05,9],login". Throws InvalidArgument naming `variable`, which it is
/// of, if it is no such list.
std::string first_host(std::string_view list, std::string_view variable);

/// How many ranks node `node` has, of a list as Slurm writes it: "2(x3),1" is
/// 2, 2, 2, 1. `total` gets the ranks of all. Throws InvalidArgument naming
/// `variable` if it is no such list or there is no such node.
int tasks_of_node(std::string_view list, std::string_view variable, int node,
                  int& total);

}  // namespace lockstep
