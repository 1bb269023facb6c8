#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/foreign_backend.h"
#include "lockstep/comm/host_backend.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tcp/connection.h"

namespace lockstep {

class ProcessGroup::Impl {
 public:
  /// Makes a group of one rank.
  Impl();
  /// Makes a group. The ranks meet in `store`, which no other group uses.
  /// Throws CommError.
  Impl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
       std::string master_addr, const ProcessGroupOptions& options);

  std::vector<std::string> all_gather_text(const std::string& text) const;
  std::optional<ProcessGroup> new_group(const std::vector<int>& ranks) const;

  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  /// Carries the group's tensors over shm or tcp, or in a group of one rank.
  /// Null if `foreign` carries them.
  c10::intrusive_ptr<HostBackend> direct;
  std::unique_ptr<ForeignBackend> foreign;
  /// Carries tensors on the host in a group for devices, as with PyTorch's
  /// "cpu:gloo,cuda:nccl". Null in a group for the host.
  c10::intrusive_ptr<HostBackend> host;

  /// Returns what carries `tensor`, and null for `foreign`.
  HostBackend* carrier_of(const at::Tensor& tensor) const {
    return host && tensor.defined() && tensor.is_cpu() ? host.get()
                                                       : direct.get();
  }
  /// Throws CommError in a child of the process whose rank this is.
  void check_home() const;

 private:
  /// Returns the name of the backend that the options ask for. Throws
  /// InvalidArgument if it does not fit the ranks' places or their devices.
  std::string choose_backend(const std::vector<std::string>& places) const;
  void connect(const std::string& backend_name);
  /// Connects the ranks over shm or tcp for tensors on `device_type`. Nothing
  /// else uses `store`.
  c10::intrusive_ptr<HostBackend> connect_host(
      const std::string& backend_name,
      const c10::intrusive_ptr<c10d::Store>& store,
      c10::DeviceType device_type) const;
  /// Returns whether the environment asks for encryption. Rank 0 warns of
  /// settings that do not do what they seem to.
  bool wants_encryption() const;
  /// Checks the links between the devices of this host, on which `backend`
  /// copies. Throws CommError if some are bad and `backend` can't avoid them.
  void avoid_bad_links(const DeviceBackend& backend) const;
  /// Waits for the key in the store, and returns its value. Throws CommError,
  /// which names the first missing key of `sources`, from which the value is
  /// made.
  std::string get(const std::string& key,
                  const std::vector<std::string>& sources = {}) const;
  std::string first_missing(const std::vector<std::string>& keys,
                            const std::string& fallback) const;

  std::string master_addr_;
  ProcessGroupOptions options_;
  std::vector<std::string> names_;  // of the ranks, in error messages
  // Number of texts and groups that all ranks have asked for. It is part of the
  // key in the store.
  mutable std::atomic<int> texts_{0};
  mutable std::atomic<int> groups_{0};
};

/// Returns torch's TCPStore below the prefixes of `store`, or null if another
/// store is there.
c10::intrusive_ptr<c10d::TCPStore> tcp_store_of(c10d::Store& store);

/// Throws InvalidArgument if the ranks have tensors on different types of
/// device. `types` has the name of each rank's type.
void check_device_types(const std::vector<std::string>& types);

/// Connects to the store in which the ranks of a job meet.
c10::intrusive_ptr<c10d::Store> connect_store(
    const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace lockstep
