#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/transport/host_backend.h"
#include "lockstep/shm/group.h"
#include "lockstep/shm/point_to_point.h"

namespace lockstep {

/// Moves bytes through the shared memory of one host (shm/).
class ShmBackend : public HostBackend {
 public:
  /// Meets the other ranks through `store`, and waits for them.
  ShmBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             Timeout timeout);

  std::string name() const override { return "shm"; }
  // An extra message costs a microsecond or two.
  size_t small_message_bytes() const override { return 4 << 10; }

  void begin(const shm::Call& call, Timeout timeout) override;
  /// Does not copy bytes that are in the same SharedMemory on every rank.
  void all_reduce(Bytes data, const shm::Reduction& reduction) override;
  void reduce(Bytes data, int root, const shm::Reduction& reduction) override;
  void broadcast(Bytes data, int root) override;
  void all_gather(ConstBytes input, std::span<const Bytes> outputs) override;
  void gather(ConstBytes input, std::span<const Bytes> outputs,
              int root) override;
  void scatter(Bytes output, std::span<const ConstBytes> inputs,
               int root) override;
  void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                      const shm::Reduction& reduction) override;
  void all_to_all(std::span<const Bytes> outputs,
                  std::span<const ConstBytes> inputs) override;
  void barrier() override;
  bool can_share_memory() const override { return true; }
  SharedMemory share(size_t bytes, Timeout timeout) override;

  void send(int to, int tag, ConstBytes data, Timeout timeout,
            shm::P2pDone done) override;
  void receive(int from, int tag, Bytes data, Timeout timeout,
               shm::P2pDone done) override;
  void receive_any(int tag, Bytes data, Timeout timeout,
                   shm::P2pDone done) override;
  void abort(const std::string& reason) noexcept override;

 private:
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
  std::vector<Bytes> all_places(const SharedMemory::Impl& memory,
                                size_t bytes) const;

  int rank_;
  int size_;
  shm::PointToPoint p2p_;
  // Made after p2p_, so that when all ranks have joined the group, all of them
  // have a p2p_.
  shm::Group group_;
  // The memory made by share(), by the number of the call, which is the same on
  // every rank. Memory that is no longer used has expired.
  std::map<uint64_t, std::weak_ptr<const SharedMemory::Impl>> shared_;
  uint64_t shares_ = 0;  // number of share() calls
};

}  // namespace lockstep
