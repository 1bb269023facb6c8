#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/base/env.h"
#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/shm/call.h"
#include "lockstep/shm/collectives.h"
#include "lockstep/shm/p2p_channel.h"

namespace lockstep::tcp {
class Mesh;
class PointToPoint;
}  // namespace lockstep::tcp

namespace lockstep {

/// Returns whether calls are compared in every detail (LOCKSTEP_DEBUG=detail).
inline bool is_debug_detail() {
  static const bool is_detailed = env("LOCKSTEP_DEBUG") == "detail";
  return is_detailed;
}

/// Moves the bytes of a HostTransport's calls.
///
/// Every collective is announced with begin(). The functions after it work like
/// those of the same names in shm/collectives.h. They throw CommError for ranks
/// that die, stall or call something else.
class HostBackend {
 public:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;
  using Timeout = std::chrono::milliseconds;

  virtual ~HostBackend() = default;

  virtual std::string name() const = 0;

  /// Throws CommError if the ranks can't continue together, and InvalidArgument
  /// for a root that is not a rank.
  virtual void begin(const shm::Call& call, Timeout timeout) = 0;
  /// A reduction with combine_scaled() multiplies each rank's data by its
  /// factor.
  virtual void all_reduce(Bytes data, const shm::Reduction& reduction) = 0;
  virtual void reduce(Bytes data, int root,
                      const shm::Reduction& reduction) = 0;
  virtual void broadcast(Bytes data, int root) = 0;
  virtual void all_gather(ConstBytes input, std::span<const Bytes> outputs) = 0;
  virtual void gather(ConstBytes input, std::span<const Bytes> outputs,
                      int root) = 0;
  virtual void scatter(Bytes output, std::span<const ConstBytes> inputs,
                       int root) = 0;
  virtual void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                              const shm::Reduction& reduction) = 0;
  virtual void all_to_all(std::span<const Bytes> outputs,
                          std::span<const ConstBytes> inputs) = 0;
  virtual void barrier() = 0;
  virtual bool can_share_memory() const { return false; }
  /// Allocates `bytes` of zeros for each rank. Calls begin() itself.
  virtual SharedMemory share(size_t bytes, Timeout timeout) = 0;

  /// Messages from rank to rank.
  virtual shm::P2pChannel& messages() = 0;

  virtual int64_t sent_bytes() const { return 0; }
  virtual void abort(const std::string& reason) noexcept = 0;
};

/// Makes a backend that moves bytes through the shared memory of one host
/// (shm/). The ranks meet through `store`, and wait for each other.
std::unique_ptr<HostBackend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    HostBackend::Timeout timeout);

/// Makes a backend that moves bytes over connections between all ranks (tcp/).
/// Sums follow the order of the tree, at the cost of a ring.
std::unique_ptr<HostBackend> make_tcp_backend(
    std::unique_ptr<tcp::Mesh> mesh,
    std::unique_ptr<tcp::PointToPoint> messages);

}  // namespace lockstep
