#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// A rank's place in its job, as the launcher tells it.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks of this host
  /// The number of this host. Open MPI does not tell it, so it is computed as
  /// if all hosts had the same number of ranks.
  int node_rank = 0;
  std::string launcher = "none";  ///< "torchrun", "slurm", "openmpi", "none"
  /// Names the launch. It keeps jobs with the same address apart.
  std::string run_id;
  /// Where the store listens; empty if the world is this process alone.
  std::string master_addr;
  /// The ports at which the store may be, in the order in which they are tried.
  /// There is one if the launcher or the user chose it. Otherwise there are
  /// several, which every rank computes from the job's number, because another
  /// program or job may use one of them.
  std::vector<uint16_t> master_ports;
  /// The launcher's agent serves the store, so rank 0 is its client as well.
  bool has_agent_store = false;
};

/// Reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...,
/// which `lockstep run` sets too), else mpirun's (Open MPI), else srun's
/// (Slurm). Without any of them, this process is rank 0 of 1. MASTER_ADDR and
/// MASTER_PORT replace the address that follows from the job.
///
/// Throws InvalidArgument, which names the variable that is missing or can't be
/// used: a rank outside of the world, text that is not a number, no address for
/// several hosts.
Environment read_environment();

}  // namespace lockstep
