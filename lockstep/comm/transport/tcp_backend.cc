#include "lockstep/comm/transport/tcp_backend.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tcp/collectives.h"

namespace lockstep {

void TcpBackend::begin(const shm::Call& call, Timeout timeout) {
  mesh_->begin(call, timeout);
  if (!is_debug_detail()) return;
  tcp::barrier(*mesh_);
  mesh_->begin(call, timeout);
}

void TcpBackend::all_reduce(Bytes data, const shm::Reduction& reduction) {
  if (reduction.combine_scaled) shm::scale(data, reduction);
  tcp::all_reduce(*mesh_, data, reduction);
}

void TcpBackend::reduce(Bytes data, int root, const shm::Reduction& reduction) {
  tcp::reduce(*mesh_, data, root, reduction);
}

void TcpBackend::broadcast(Bytes data, int root) {
  tcp::broadcast(*mesh_, data, root);
}

void TcpBackend::all_gather(ConstBytes input, std::span<const Bytes> outputs) {
  tcp::all_gather(*mesh_, input, outputs);
}

void TcpBackend::gather(ConstBytes input, std::span<const Bytes> outputs,
                        int root) {
  tcp::gather(*mesh_, input, outputs, root);
}

void TcpBackend::scatter(Bytes output, std::span<const ConstBytes> inputs,
                         int root) {
  tcp::scatter(*mesh_, output, inputs, root);
}

void TcpBackend::reduce_scatter(Bytes output,
                                std::span<const ConstBytes> inputs,
                                const shm::Reduction& reduction) {
  tcp::reduce_scatter(*mesh_, output, inputs, reduction);
}

void TcpBackend::all_to_all(std::span<const Bytes> outputs,
                            std::span<const ConstBytes> inputs) {
  tcp::all_to_all(*mesh_, outputs, inputs);
}

void TcpBackend::barrier() { tcp::barrier(*mesh_); }

SharedMemory TcpBackend::share(size_t, Timeout) {
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "ranks over tcp share no memory",
                   .fix = "use the backend shm on one host"});
}

void TcpBackend::send(int to, int tag, ConstBytes data, Timeout timeout,
                      shm::P2pDone done) {
  messages_->send(to, tag, data, timeout, std::move(done));
}

void TcpBackend::receive(int from, int tag, Bytes data, Timeout timeout,
                         shm::P2pDone done) {
  messages_->receive(from, tag, data, timeout, std::move(done));
}

void TcpBackend::receive_any(int tag, Bytes data, Timeout timeout,
                             shm::P2pDone done) {
  messages_->receive_any(tag, data, timeout, std::move(done));
}

void TcpBackend::abort(const std::string& reason) noexcept {
  mesh_->abort(reason);
  messages_->abort(reason);
}

}  // namespace lockstep
