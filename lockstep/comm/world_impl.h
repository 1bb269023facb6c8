#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/backends/backends.h"
#include "lockstep/comm/queue/call_factory.h"
#include "lockstep/comm/queue/communicator.h"
#include "lockstep/comm/world.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep {

class World::Impl {
 public:
  /// Makes a world of one rank.
  Impl();
  /// Makes a world. The ranks meet in `store`, which no other world uses.
  /// Throws CommError.
  Impl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
       std::string master_addr, const WorldOptions& options);

  std::vector<std::string> all_gather_text(const std::string& text) const;
  std::optional<World> new_group(const std::vector<int>& ranks) const;

  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  /// Makes and runs calls on one kind of memory.
  struct Line {
    CallFactory calls;
    std::shared_ptr<Communicator> communicator;

    void run(const CollectiveCall& call) const { communicator->run(call); }
    /// Returns the Work of a call that is begun.
    Work begin(CollectiveCall call) const;
  };
  Line main;
  /// Line for tensors on the host over nccl, as with PyTorch's
  /// "cpu:gloo,cuda:nccl". Not used with other backends.
  std::optional<Line> host;
  const Line& line_of(const at::Tensor& tensor) const;
  const Line& line_of(const std::vector<at::Tensor>& tensors) const;

  c10::intrusive_ptr<c10d::Backend> backend;  ///< null in a world of one

 private:
  /// Returns the name of the backend that the options ask for. Throws
  /// InvalidArgument if it does not fit the ranks' places or their devices.
  std::string choose_backend(const std::vector<std::string>& places) const;
  void connect(const std::string& backend_name);
  Line connect_host(const std::string& backend_name,
                    const BackendOptions& options) const;
  void avoid_bad_links() const;
  std::unique_ptr<Collectives> connect_gloo(
      const BackendOptions& options) const;
  /// Connects every pair of ranks, for collectives between hosts.
  std::unique_ptr<tcp::Mesh> connect_mesh(
      const std::string& master_addr,
      const std::vector<std::string>& names) const;
  std::string get(const std::string& key) const;

  std::string master_addr_;
  WorldOptions options_;
  // Number of texts and groups that all ranks have asked for. It is part of the
  // key in the store.
  mutable std::atomic<int> texts_{0};
  mutable std::atomic<int> groups_{0};
};

/// Connects to the store in which the ranks of a job meet.
c10::intrusive_ptr<c10d::Store> connect_store(
    const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace lockstep
