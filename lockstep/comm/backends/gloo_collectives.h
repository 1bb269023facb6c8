#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/backends/gloo_message.h"
#include "lockstep/comm/backends/host_collectives.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep {

/// Collectives between hosts. They use our own connections (tcp/), which sum in
/// the order of the tree at the cost of a ring. Messages from rank to rank use
/// c10d's ProcessGroupGloo.
class GlooCollectives : public HostCollectives {
 public:
  /// `rank_names` are used in error messages: "rank 1 (host a, pid 7)".
  GlooCollectives(c10::intrusive_ptr<c10d::Backend> gloo,
                  std::unique_ptr<tcp::Mesh> mesh,
                  std::vector<std::string> rank_names);

  std::string name() const override { return "gloo"; }
  // A message costs about 20 us, regardless of its size.
  size_t small_message_bytes() const override { return 16 << 10; }
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  Work send(const at::Tensor& tensor, int to, int tag,
            Timeout timeout) override;
  Work recv(const at::Tensor& tensor, int from, int tag,
            Timeout timeout) override;
  Work recv_any(const at::Tensor& tensor, int tag, Timeout timeout) override;
  int64_t sent_bytes() const override { return mesh_->sent_bytes(); }
  bool can_share_memory() const override { return false; }
  SharedMemory share(size_t bytes, Timeout timeout) override;
  void abort(const std::string& reason) noexcept override;

 private:
  /// In debug detail, first compares `call` with those of all other ranks.
  void begin(const shm::Call& call, Timeout timeout) override;
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
  Work start_message(shm::P2pOperation::Kind kind, const at::Tensor& tensor,
                     int peer, int tag, Timeout timeout);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::unique_ptr<tcp::Mesh> mesh_;
  RankNames rank_names_;
};

}  // namespace lockstep
