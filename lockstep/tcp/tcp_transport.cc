#include "lockstep/tcp/tcp_transport.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tcp/collectives.h"

namespace lockstep::tcp {

using transport::Reduction;

TcpTransport::TcpTransport(std::unique_ptr<Mesh> mesh)
    : mesh_(std::move(mesh)) {}
TcpTransport::~TcpTransport() = default;

void TcpTransport::begin(const transport::Call& call, Milliseconds timeout) {
  mesh_->begin(call, timeout);
  if (!transport::is_debug_detail()) return;
  // Compares the call with those of all other ranks.
  tcp::barrier(*mesh_);
  mesh_->begin(call, timeout);
}

void TcpTransport::all_reduce(Bytes data, const Reduction& reduction) {
  if (reduction.combine_scaled) transport::scale(data, reduction);
  tcp::all_reduce(*mesh_, data, reduction);
}

void TcpTransport::reduce(Bytes data, int root, const Reduction& reduction) {
  tcp::reduce(*mesh_, data, root, reduction);
}

void TcpTransport::broadcast(Bytes data, int root) {
  tcp::broadcast(*mesh_, data, root);
}

void TcpTransport::all_gather(ConstBytes input,
                              std::span<const Bytes> outputs) {
  tcp::all_gather(*mesh_, input, outputs);
}

void TcpTransport::gather(ConstBytes input, std::span<const Bytes> outputs,
                          int root) {
  tcp::gather(*mesh_, input, outputs, root);
}

void TcpTransport::scatter(Bytes output, std::span<const ConstBytes> inputs,
                           int root) {
  tcp::scatter(*mesh_, output, inputs, root);
}

void TcpTransport::reduce_scatter(Bytes output,
                                  std::span<const ConstBytes> inputs,
                                  const Reduction& reduction) {
  tcp::reduce_scatter(*mesh_, output, inputs, reduction);
}

void TcpTransport::all_to_all(std::span<const Bytes> outputs,
                              std::span<const ConstBytes> inputs) {
  tcp::all_to_all(*mesh_, outputs, inputs);
}

void TcpTransport::barrier() { tcp::barrier(*mesh_); }

std::shared_ptr<const std::vector<transport::RankMemory>> TcpTransport::share(
    size_t, Milliseconds) {
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "ranks over tcp share no memory",
                   .fix = "use the backend shm on one host"});
}

int64_t TcpTransport::sent_bytes() const { return mesh_->sent_bytes(); }

void TcpTransport::abort(const std::string& reason) noexcept {
  mesh_->abort(reason);
}

}  // namespace lockstep::tcp
