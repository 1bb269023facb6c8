#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::tools {

/// Collectives that `lockstep bench` can time.
enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll
};

/// Returns the names: "allreduce", "allgather", ...
const std::vector<std::string>& collective_names();
/// Throws InvalidArgument if `name` is not one of them.
Collective parse_collective(const std::string& name);
std::string name_of(Collective collective);

/// Returns the bytes on the busiest wire divided by the bytes of the message,
/// as nccl-tests count them (doc/PERFORMANCE.md there). Bus bandwidth is this
/// factor times size over time.
double bus_factor(Collective collective, int ranks);

/// Input and output of a rank. The larger buffer has the size that nccl-tests
/// call the size of the message. All-reduce and broadcast work in place.
struct CollectiveBuffers {
  at::Tensor input;
  at::Tensor output;
};

/// A rank's part of a collective with `count` elements in all. Every rank knows
/// the data: small whole numbers that are exact in every type.
class CollectiveCase {
 public:
  /// `count` must be a multiple of `ranks`.
  CollectiveCase(Collective collective, int64_t count, at::ScalarType type,
                 int rank, int ranks);

  Collective collective() const { return collective_; }
  CollectiveBuffers make_buffers() const;
  void fill(CollectiveBuffers& buffers) const;
  /// Runs the collective, as a user would.
  void run(const ProcessGroup& group, CollectiveBuffers& buffers) const;
  /// Returns the number of elements that differ from the result of fill() and
  /// run().
  int64_t count_wrong(const CollectiveBuffers& buffers) const;
  /// Copies as many bytes as the message has to the larger buffer.
  void copy_over(CollectiveBuffers& buffers) const;
  /// Reads and writes every byte of the larger buffer in place.
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

}  // namespace lockstep::tools
