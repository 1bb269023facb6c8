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
  /// A world of one rank.
  Impl();
  /// The ranks meet in `store`, which no other world uses. Throws CommError.
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
  /// What calls on one kind of memory are made with.
  struct Line {
    CallFactory calls;
    std::shared_ptr<Communicator> communicator;

    void run(const CollectiveCall& call) const { communicator->run(call); }
    /// The Work of a call that is begun.
    Work begin(CollectiveCall call) const;
  };
  Line main;
  /// Over nccl: tensors on the host go this way, as with PyTorch's
  /// "cpu:gloo,cuda:nccl". Elsewhere there is none.
  std::optional<Line> host;
  const Line& line_of(const at::Tensor& tensor) const;
  const Line& line_of(const std::vector<at::Tensor>& tensors) const;

  c10::intrusive_ptr<c10d::Backend> backend;  ///< null in a world of one

 private:
  /// The name of the backend that the options ask for. Throws InvalidArgument
  /// if it suits neither the ranks' places nor their devices.
  std::string choose_backend(const std::vector<std::string>& places) const;
  void connect(const std::string& backend_name);
  Line connect_host(const std::string& backend_name,
                    const BackendOptions& options) const;
  void avoid_bad_links() const;
  std::unique_ptr<Collectives> connect_gloo(
      const BackendOptions& options) const;
  /// Connects each two ranks, for collectives between hosts.
  std::unique_ptr<tcp::Mesh> connect_mesh(
      const std::string& master_addr,
      const std::vector<std::string>& names) const;
  std::string get(const std::string& key) const;

  std::string master_addr_;
  WorldOptions options_;
  // How many texts and groups all ranks have asked for. The number is part of
  // the key in the store.
  mutable std::atomic<int> texts_{0};
  mutable std::atomic<int> groups_{0};
};

/// The store in which the ranks of a job meet.
c10::intrusive_ptr<c10d::Store> connect_store(
    const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace lockstep
