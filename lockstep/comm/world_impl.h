#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/queued_backend.h"
#include "lockstep/comm/world.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep {

class World::Impl {
 public:
  /// Of one rank.
  Impl() = default;
  /// The ranks meet in `store`, which is theirs alone. Throws CommError.
  Impl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
       std::string master_addr, const WorldOptions& options);

  std::vector<std::string> all_gather_text(const std::string& text) const;
  std::optional<World> new_group(const std::vector<int>& ranks) const;

  /// The backend, to send to other ranks. Throws InvalidArgument in a world of
  /// one.
  c10d::Backend& others() const;

  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  QueuedBackend* queued = nullptr;  ///< `backend`, unless it is nccl

 private:
  void choose_backend(const std::vector<std::string>& places);
  /// Connects each rank to each other, for collectives between hosts.
  std::unique_ptr<tcp::Mesh> connect_mesh(
      const std::vector<std::string>& names) const;
  std::string get(const std::string& key) const;

  std::string master_addr_;
  WorldOptions options_;
  // Of what is asked for by all ranks: its number is part of the key.
  mutable std::atomic<int> texts_{0};
  mutable std::atomic<int> groups_{0};
};

/// The store of a job's ranks, for a world of its own.
c10::intrusive_ptr<c10d::Store> connect_store(
    const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace lockstep
