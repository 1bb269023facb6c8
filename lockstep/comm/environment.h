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
  /// Of this host. Open MPI does not tell: as if all hosts had as many ranks.
  int node_rank = 0;
  std::string launcher = "none";  ///< "torchrun", "slurm", "openmpi", "none"
  /// Of the launch: jobs with the same address keep apart by it.
  std::string run_id;
  /// Where the store listens; empty if the world is this process alone.
  std::string master_addr;
  /// The ports at which the store may be, in the order in which they are tried.
  /// One if the launcher or the user chose it; else several, which every rank
  /// computes from the job's number: they may be taken, by another job too.
  std::vector<uint16_t> master_ports;
  /// The launcher's agent serves the store, so rank 0 is its client as well.
  bool has_agent_store = false;
};

/// Reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...,
/// which `lockstep run` sets too), else mpirun's (Open MPI), else srun's
/// (Slurm). With none of them this process is rank 0 of 1. MASTER_ADDR and
/// MASTER_PORT win over what follows from the job.
///
/// Throws InvalidArgument naming the variable that is missing or can't be: a
/// rank outside of the world, no number, no address for several hosts.
Environment read_environment();

}  // namespace lockstep
