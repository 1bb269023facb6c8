#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/backends/host_collectives.h"
#include "lockstep/comm/queue/callback_threads.h"
#include "lockstep/shm/group.h"
#include "lockstep/shm/point_to_point.h"

namespace lockstep {

/// Collectives and messages through the shared memory of one host (shm/).
class ShmCollectives : public HostCollectives {
 public:
  /// Meets the other ranks through `store`, and waits for them.
  ShmCollectives(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                 int size, Timeout timeout);

  std::string name() const override { return "shm"; }
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  Work send(const at::Tensor& tensor, int to, int tag,
            Timeout timeout) override;
  Work recv(const at::Tensor& tensor, int from, int tag,
            Timeout timeout) override;
  Work recv_any(const at::Tensor& tensor, int tag, Timeout timeout) override;
  bool can_share_memory() const override { return true; }
  SharedMemory share(size_t bytes, Timeout timeout) override;
  void abort(const std::string& reason) noexcept override {
    group_.abort(reason);
    p2p_.abort(reason);
  }

 private:
  void begin(const shm::Call& call, Timeout timeout) override;
  /// Does not copy bytes that are in the same SharedMemory on every rank.
  void all_reduce_bytes(Bytes data, const shm::Reduction& reduction) override;
  void reduce_bytes(Bytes data, int root,
                    const shm::Reduction& reduction) override;
  void broadcast_bytes(Bytes data, int root) override;
  void all_gather_bytes(ConstBytes input,
                        std::span<const Bytes> outputs) override;
  void gather_bytes(ConstBytes input, std::span<const Bytes> outputs,
                    int root) override;
  void scatter_bytes(Bytes output, std::span<const ConstBytes> inputs,
                     int root) override;
  void reduce_scatter_bytes(Bytes output, std::span<const ConstBytes> inputs,
                            const shm::Reduction& reduction) override;
  void all_to_all_bytes(std::span<const Bytes> outputs,
                        std::span<const ConstBytes> inputs) override;
  void wait_for_all() override;

  /// Location of a tensor in this rank's shared memory.
  struct Place {
    std::shared_ptr<const SharedMemory::Impl> memory;  // null: none
    uint64_t number = 0;  // of the memory and the byte in it; 0: none
  };
  Place place_of(ConstBytes bytes) const;
  /// Sends this rank's place and factor to the other ranks. Returns whether the
  /// tensors of all ranks are in the same shared memory.
  bool are_all_shared(const Place& own_place, double factor);
  /// Returns the places of all ranks.
  std::vector<std::span<std::byte>> all_places(const SharedMemory::Impl& memory,
                                               size_t bytes) const;

  CallbackThreads callback_threads_;  // destroyed after p2p_, which uses it
  shm::PointToPoint p2p_;
  // Made after p2p_, so that when all ranks have joined the group, all of them
  // have a p2p_.
  shm::Group group_;
  // The memory made by share(), by the number of the call, which is the same on
  // every rank. Memory that is no longer used has expired.
  std::map<uint64_t, std::weak_ptr<const SharedMemory::Impl>> shared_;
  uint64_t shares_ = 0;  // number of share() calls
  std::atomic<uint32_t> monitored_barriers_ = 0;
};

}  // namespace lockstep
