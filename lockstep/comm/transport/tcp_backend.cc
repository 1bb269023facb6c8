#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/host_backend.h"
#include "lockstep/tcp/collectives.h"
#include "lockstep/tcp/mesh.h"
#include "lockstep/tcp/point_to_point.h"

namespace lockstep {
namespace {

class TcpBackend : public HostBackend {
 public:
  TcpBackend(std::unique_ptr<tcp::Mesh> mesh,
             std::unique_ptr<tcp::PointToPoint> messages)
      : mesh_(std::move(mesh)), messages_(std::move(messages)) {}

  std::string name() const override { return "tcp"; }

  void begin(const shm::Call& call, Timeout timeout) override {
    mesh_->begin(call, timeout);
    if (!is_debug_detail()) return;
    // Compares the call with those of all other ranks.
    tcp::barrier(*mesh_);
    mesh_->begin(call, timeout);
  }

  void all_reduce(Bytes data, const shm::Reduction& reduction) override {
    if (reduction.combine_scaled) shm::scale(data, reduction);
    tcp::all_reduce(*mesh_, data, reduction);
  }

  void reduce(Bytes data, int root, const shm::Reduction& reduction) override {
    tcp::reduce(*mesh_, data, root, reduction);
  }

  void broadcast(Bytes data, int root) override {
    tcp::broadcast(*mesh_, data, root);
  }

  void all_gather(ConstBytes input, std::span<const Bytes> outputs) override {
    tcp::all_gather(*mesh_, input, outputs);
  }

  void gather(ConstBytes input, std::span<const Bytes> outputs,
              int root) override {
    tcp::gather(*mesh_, input, outputs, root);
  }

  void scatter(Bytes output, std::span<const ConstBytes> inputs,
               int root) override {
    tcp::scatter(*mesh_, output, inputs, root);
  }

  void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                      const shm::Reduction& reduction) override {
    tcp::reduce_scatter(*mesh_, output, inputs, reduction);
  }

  void all_to_all(std::span<const Bytes> outputs,
                  std::span<const ConstBytes> inputs) override {
    tcp::all_to_all(*mesh_, outputs, inputs);
  }

  void barrier() override { tcp::barrier(*mesh_); }

  SharedMemory share(size_t, Timeout) override {
    throw CommError({.code = ErrorCode::kNoSharedMemory,
                     .what = "ranks over tcp share no memory",
                     .fix = "use the backend shm on one host"});
  }

  shm::P2pChannel& messages() override { return *messages_; }
  int64_t sent_bytes() const override { return mesh_->sent_bytes(); }

  void abort(const std::string& reason) noexcept override {
    mesh_->abort(reason);
    messages_->abort(reason);
  }

 private:
  std::unique_ptr<tcp::Mesh> mesh_;
  std::unique_ptr<tcp::PointToPoint> messages_;
};

}  // namespace

std::unique_ptr<HostBackend> make_tcp_backend(
    std::unique_ptr<tcp::Mesh> mesh,
    std::unique_ptr<tcp::PointToPoint> messages) {
  return std::make_unique<TcpBackend>(std::move(mesh), std::move(messages));
}

}  // namespace lockstep
