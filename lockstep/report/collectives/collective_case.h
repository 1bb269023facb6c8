#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/types.h>

#include "lockstep/comm/world.h"

namespace lockstep::report {

/// What `lockstep bench` can time.
enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll
};

/// "allreduce", "allgather", ...
const std::vector<std::string>& collective_names();
/// Throws InvalidArgument.
Collective parse_collective(const std::string& name);
std::string name_of(Collective collective);

/// Bytes on the busiest wire over bytes of the message, as nccl-tests count
/// them (its doc/PERFORMANCE.md): bus bandwidth is this times size over time.
double bus_factor(Collective collective, int ranks);

/// What a rank puts in and gets out. The larger one has the size that
/// nccl-tests call the message's; all-reduce and broadcast work in place.
struct CollectiveBuffers {
  at::Tensor input;
  at::Tensor output;
};

/// A collective of a rank with `count` elements in all, and data that is known
/// on every rank: small whole numbers, exact in every type.
class CollectiveCase {
 public:
  /// `count` is a multiple of `ranks`.
  CollectiveCase(Collective collective, int64_t count, at::ScalarType type,
                 int rank, int ranks);

  CollectiveBuffers make_buffers() const;
  /// In place, in `memory` of `count` elements.
  CollectiveBuffers buffers_in(const at::Tensor& memory) const;
  void fill(CollectiveBuffers& buffers) const;
  void run(c10d::Backend& backend, CollectiveBuffers& buffers) const;
  /// As a user of Lockstep calls it; by c10d's interface what World returns in
  /// new tensors.
  void run(const World& world, CollectiveBuffers& buffers) const;
  /// Elements that are not what fill() and run() make of them.
  int64_t count_wrong(const CollectiveBuffers& buffers) const;
  /// Copies as many bytes as the message has over the larger buffer.
  void copy_over(CollectiveBuffers& buffers) const;
  /// Reads and writes every byte of that buffer where it is.
  void update_in_place(CollectiveBuffers& buffers) const;

 private:
  bool is_in_place() const;
  at::Tensor& larger(CollectiveBuffers& buffers) const;
  at::Tensor expected() const;

  Collective collective_;
  int64_t count_;
  int rank_;
  int ranks_;
  at::Tensor pattern_;  // (count_): 0 1 2 3 4 0 1 ...
};

}  // namespace lockstep::report
