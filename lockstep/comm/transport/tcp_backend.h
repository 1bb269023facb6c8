#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/transport/host_backend.h"
#include "lockstep/tcp/mesh.h"
#include "lockstep/tcp/point_to_point.h"

namespace lockstep {

/// Moves bytes over connections between all ranks (tcp/). Sums follow the order
/// of the tree, at the cost of a ring.
class TcpBackend : public HostBackend {
 public:
  TcpBackend(std::unique_ptr<tcp::Mesh> mesh,
             std::unique_ptr<tcp::PointToPoint> messages)
      : mesh_(std::move(mesh)), messages_(std::move(messages)) {}

  std::string name() const override { return "tcp"; }
  // A message costs about 20 us, regardless of its size.
  size_t small_message_bytes() const override { return 16 << 10; }

  /// In debug detail, first compares `call` with those of all other ranks.
  void begin(const shm::Call& call, Timeout timeout) override;
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
  /// Throws CommError.
  SharedMemory share(size_t bytes, Timeout timeout) override;

  void send(int to, int tag, ConstBytes data, Timeout timeout,
            shm::P2pDone done) override;
  void receive(int from, int tag, Bytes data, Timeout timeout,
               shm::P2pDone done) override;
  void receive_any(int tag, Bytes data, Timeout timeout,
                   shm::P2pDone done) override;
  int64_t sent_bytes() const override { return mesh_->sent_bytes(); }
  void abort(const std::string& reason) noexcept override;

 private:
  std::unique_ptr<tcp::Mesh> mesh_;
  std::unique_ptr<tcp::PointToPoint> messages_;
};

}  // namespace lockstep
