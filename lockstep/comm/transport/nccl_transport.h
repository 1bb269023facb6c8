#pragma once

#include <string>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error_code.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep {

/// Transport over a c10d backend that runs its calls in order, as
/// ProcessGroupNCCL does. The tensors are on the backend's devices, and the
/// backend determines the order in which a sum adds the ranks. Calls are
/// started in the caller's thread, so that they follow the work in the caller's
/// CUDA stream.
class NcclTransport : public Transport {
 public:
  /// `device_type` is the device type of the tensors of `backend`.
  NcclTransport(c10::intrusive_ptr<c10d::Backend> backend,
                c10::DeviceType device_type, Timeout timeout);

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  std::string name() const override { return backend_->getBackendName(); }
  void run(const CollectiveCall& call, Timeout timeout) override;
  WorkPtr begin(CollectiveCall call, Timeout timeout) override;
  /// Large, because c10d can send several tensors at once.
  size_t small_message_bytes() const override { return 4 << 20; }
  // c10d has no timeout for a message. It uses that of the backend.
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  void abort(const std::string&) noexcept override {}

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

/// Throws an error of NCCL as a CommError with `code`. `what` says what failed,
/// such as "ALLREDUCE failed".
[[noreturn]] void throw_nccl_error(
    const c10::DistBackendError& error, const std::string& what,
    ErrorCode code = ErrorCode::kCollectiveFailed);

/// Makes c10d's ProcessGroupNCCL. Throws CommError if that fails, or in a build
/// without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout);

}  // namespace lockstep
