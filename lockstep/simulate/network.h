#pragma once

#include <cstdint>
#include <map>

// The time of an all-reduce on a network that is described by a few numbers.
// The costs are those of docs/collectives.md.
namespace lockstep::simulate {

/// The algorithm of an all-reduce. kAuto is that of Lockstep: shared memory on
/// one host, TCP between hosts. kTcp uses TCP on one host, too. kRing is the
/// ring of NCCL and MPI.
enum class Algorithm { kAuto, kTcp, kRing };

/// The cost of one all-reduce, for a rank.
struct AllReduceCost {
  double waits = 0;  ///< waits for other ranks, one after another
  /// Ranks that it reads a word or a message from, in all of the waits.
  double messages = 0;
  double bytes = 0;  ///< copied by the rank (shm) or sent (tcp and ring)
};

AllReduceCost shm_cost(int64_t ranks, double bytes);
AllReduceCost tcp_cost(int64_t ranks, double bytes);
AllReduceCost ring_cost(int64_t ranks, double bytes);

struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct Network {
  Algorithm algorithm = Algorithm::kAuto;
  int64_t ranks_per_host = 1;
  /// Cores of a host. More ranks than cores take turns. 0 means that every rank
  /// has its own core or GPU.
  int64_t cores_per_host = 0;
  /// Bytes of a message that a core has in its caches, for all ranks that share
  /// it. The rest of a larger message moves at `memory_bytes_per_s` instead of
  /// the bandwidth of `host`. 0 means that there is no such limit.
  double cache_bytes = 0;
  double memory_bytes_per_s = 0;
  double message_s = 0;  ///< work of a rank for each message
  /// Between the ranks of a host. The bandwidth is that of one rank.
  Link host;
  /// Between hosts. The bandwidth is that of a whole host, in one direction.
  Link between;
  /// Measured bus bandwidth in bytes per second, by number of hosts. It
  /// replaces both bandwidths if it is not empty.
  std::map<int64_t, double> bus_by_hosts;
  /// Hosts that share a switch; 0: all of them. Traffic that leaves a switch
  /// has 1/oversubscription of the bandwidth of its hosts.
  int64_t hosts_per_switch = 0;
  double oversubscription = 1;
};

int64_t hosts_of(const Network& network, int64_t ranks);

/// Returns the time of an all-reduce of `bytes` over `ranks` ranks. Throws
/// InvalidArgument if the description lacks a number that this takes.
double all_reduce_s(const Network& network, int64_t ranks, double bytes);

}  // namespace lockstep::simulate
