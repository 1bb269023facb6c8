#include "lockstep/comm/backends/gloo_collectives.h"

#include <utility>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/error.h"
#include "lockstep/tcp/collectives.h"

namespace lockstep {

GlooCollectives::GlooCollectives(c10::intrusive_ptr<c10d::Backend> gloo,
                                 std::unique_ptr<tcp::Mesh> mesh,
                                 std::vector<std::string> rank_names)
    : HostCollectives(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      mesh_(std::move(mesh)),
      rank_names_(std::make_shared<const std::vector<std::string>>(
          std::move(rank_names))) {}

void GlooCollectives::begin(const shm::Call& call, Timeout timeout) {
  mesh_->begin(call, timeout);
  if (!is_debug_detail()) return;
  tcp::barrier(*mesh_);
  mesh_->begin(call, timeout);
}

void GlooCollectives::all_reduce_bytes(Bytes data,
                                       const shm::Reduction& reduction) {
  if (reduction.combine_scaled) shm::scale(data, reduction);
  tcp::all_reduce(*mesh_, data, reduction);
}

void GlooCollectives::reduce_bytes(Bytes data, int root,
                                   const shm::Reduction& reduction) {
  tcp::reduce(*mesh_, data, root, reduction);
}

void GlooCollectives::broadcast_bytes(Bytes data, int root) {
  tcp::broadcast(*mesh_, data, root);
}

void GlooCollectives::all_gather_bytes(ConstBytes input,
                                       std::span<const Bytes> outputs) {
  tcp::all_gather(*mesh_, input, outputs);
}

void GlooCollectives::gather_bytes(ConstBytes input,
                                   std::span<const Bytes> outputs, int root) {
  tcp::gather(*mesh_, input, outputs, root);
}

void GlooCollectives::scatter_bytes(Bytes output,
                                    std::span<const ConstBytes> inputs,
                                    int root) {
  tcp::scatter(*mesh_, output, inputs, root);
}

void GlooCollectives::reduce_scatter_bytes(Bytes output,
                                           std::span<const ConstBytes> inputs,
                                           const shm::Reduction& reduction) {
  tcp::reduce_scatter(*mesh_, output, inputs, reduction);
}

void GlooCollectives::all_to_all_bytes(std::span<const Bytes> outputs,
                                       std::span<const ConstBytes> inputs) {
  tcp::all_to_all(*mesh_, outputs, inputs);
}

void GlooCollectives::wait_for_all() { tcp::barrier(*mesh_); }

// Uses Gloo's barrier. The tags of its messages differ from all user tags.
void GlooCollectives::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  const BlockedSigpipe blocked;
  try {
    gloo_->monitoredBarrier({.device_ids = {}, .timeout = timeout},
                            wait_all_ranks);
  } catch (const std::exception& error) {
    throw gloo_error(rank_names_, rank(), "monitoredBarrier", error);
  }
}

Collectives::Work GlooCollectives::send(const at::Tensor& tensor, int to,
                                        int tag, Timeout timeout) {
  return start_message(shm::P2pOperation::Kind::kSend, tensor, to, tag,
                       timeout);
}

Collectives::Work GlooCollectives::recv(const at::Tensor& tensor, int from,
                                        int tag, Timeout timeout) {
  return start_message(shm::P2pOperation::Kind::kReceive, tensor, from, tag,
                       timeout);
}

Collectives::Work GlooCollectives::recv_any(const at::Tensor& tensor, int tag,
                                            Timeout timeout) {
  return start_message(shm::P2pOperation::Kind::kReceive, tensor,
                       shm::kAnySource, tag, timeout);
}

Collectives::Work GlooCollectives::start_message(shm::P2pOperation::Kind kind,
                                                 const at::Tensor& tensor,
                                                 int peer, int tag,
                                                 Timeout timeout) {
  const shm::P2pOperation operation{.kind = kind,
                                    .peer = peer,
                                    .tag = tag,
                                    .bytes = tensor.nbytes(),
                                    .deadline = {},
                                    .done = {}};
  return c10::make_intrusive<GlooMessage>(*gloo_, rank_names_, operation,
                                          tensor, timeout);
}

void GlooCollectives::abort(const std::string& reason) noexcept {
  mesh_->abort(reason);
  try {
    gloo_->abort();
  } catch (const std::exception&) {
    // The other ranks then wait until their timeout.
  }
}

SharedMemory GlooCollectives::share(size_t, Timeout) {
  throw CommError({.code = ErrorCode::kNoSharedMemory,
                   .what = "ranks over gloo share no memory",
                   .fix = "use --backend shm on one host"});
}

}  // namespace lockstep
