#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// A rank's place in its job, as given by the launcher.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks of this host
  int local_world_size = 1;  ///< ranks of this host
  /// Number of this host. Open MPI does not provide it, so it is computed as if
  /// all hosts had the same number of ranks.
  int node_rank = 0;
  std::string launcher = "none";  ///< "torchrun", "slurm", "openmpi", "none"
  /// Name of the launch. It distinguishes jobs with the same address.
  std::string run_id;
  /// Address of the store. Empty if the world is only this process.
  std::string master_addr;
  /// Candidate ports of the store, in the order in which they are tried.
  /// There is one if the launcher or the user chose it. Otherwise there are
  /// several, which every rank computes from the job's number, because another
  /// program or job may use one of them.
  std::vector<uint16_t> master_ports;
  /// Whether the launcher's agent serves the store, so that rank 0 is a client
  /// too.
  bool has_agent_store = false;
};

/// Reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...,
/// which `lockstep run` also sets), or else those of mpirun (Open MPI), or else
/// those of srun (Slurm). Without any of them, this process is rank 0 of 1.
/// MASTER_ADDR and MASTER_PORT override the address derived from the job.
///
/// Throws InvalidArgument naming the variable that is missing or invalid: a
/// rank outside of the world, text that is not a number, no address for several
/// hosts.
Environment read_environment();

}  // namespace lockstep
