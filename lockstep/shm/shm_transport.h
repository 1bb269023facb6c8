#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/shm/group.h"
#include "lockstep/transport/transport.h"

namespace lockstep::shm {

/// Moves the bytes of collectives through the shared memory of one host.
class ShmTransport : public transport::Transport {
 public:
  using Bytes = transport::Bytes;
  using ConstBytes = transport::ConstBytes;
  using Milliseconds = transport::Milliseconds;

  /// `segment` is the one that Group::make_segment() made on one rank. Waits
  /// until all ranks have joined. Throws CommError.
  ShmTransport(std::shared_ptr<const Segment> segment, int rank, int size,
               Milliseconds timeout);

  const char* name() const override { return "shm"; }
  void begin(const transport::Call& call, Milliseconds timeout) override;
  void all_reduce(Bytes data, const transport::Reduction& reduction) override;
  void reduce(Bytes data, int root,
              const transport::Reduction& reduction) override;
  void broadcast(Bytes data, int root) override;
  void all_gather(ConstBytes input, std::span<const Bytes> outputs) override;
  void gather(ConstBytes input, std::span<const Bytes> outputs,
              int root) override;
  void scatter(Bytes output, std::span<const ConstBytes> inputs,
               int root) override;
  void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                      const transport::Reduction& reduction) override;
  void all_to_all(std::span<const Bytes> outputs,
                  std::span<const ConstBytes> inputs) override;
  void barrier() override;
  bool can_share() const override { return true; }
  std::shared_ptr<const std::vector<transport::RankMemory>> share(
      size_t bytes, Milliseconds timeout) override;
  std::optional<std::string> end_of(int rank) const override {
    return group_.end_of(rank);
  }
  std::string state_of(int rank) const override {
    return group_.state_of(rank);
  }
  void abort(const std::string& reason) noexcept override;

 private:
  using Shared = std::vector<transport::RankMemory>;

  // Location of a tensor in this rank's shared memory.
  struct Place {
    std::shared_ptr<const Shared> memory;  // null: none
    uint64_t number = 0;  // of the memory and the byte in it; 0: none
  };

  Place place_of(ConstBytes bytes) const;
  // Sends this rank's place and factor to the other ranks. Returns whether the
  // tensors of all ranks are in the same shared memory. A rank that has a
  // tensor in a shared memory also has the other ranks' parts of that memory
  // mapped. It may have unmapped other shared memories, so all places must be
  // in the same one.
  bool are_all_shared(const Place& own_place, double factor);
  // Returns the places of all ranks.
  std::vector<Bytes> all_places(const Shared& memory, size_t bytes) const;

  int rank_;
  int size_;
  Group group_;
  // The memory made by share(), by the number of the call, which is the same on
  // every rank. Memory that is no longer used has expired.
  std::map<uint64_t, std::weak_ptr<const Shared>> shared_;
  uint64_t shares_ = 0;  // number of share() calls
};

}  // namespace lockstep::shm
