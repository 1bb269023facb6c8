#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error_code.h"
#include "lockstep/comm/transport/transport.h"

namespace lockstep {

/// Transport over a c10d backend that runs its calls in order, as
/// ProcessGroupNCCL does. The tensors are on the backend's devices, and the
/// backend determines the order in which a sum adds the ranks. Calls are
/// started in the caller's thread, so that they follow the work in the caller's
/// stream.
class DeviceTransport : public Transport {
 public:
  /// `name` and `device_type` are those of the DeviceBackend that made
  /// `backend`.
  DeviceTransport(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
                  c10::DeviceType device_type, Timeout timeout);
  /// Waits for the device, because a backend may end the calls that still run
  /// when it is destroyed. If this happens because of an exception, ends them,
  /// since this rank will make no further calls.
  ~DeviceTransport() override;

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  bool sums_along_tree() const override { return false; }
  void run(const CollectiveCall& call, Timeout timeout) override;
  WorkPtr begin(CollectiveCall call, Timeout timeout) override;
  /// Large, because c10d can send several tensors at once.
  // c10d has no timeout for a message. It uses that of the backend.
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  /// Ends the calls that this rank waits for. Whether that ends those of the
  /// other ranks depends on the backend. c10d can't pass on the reason.
  void abort(const std::string& reason) noexcept override;

 private:
  /// Returns what `begin` returns, which begins a call with `tensors`, and
  /// remembers their device. Throws CommError for an error of the backend.
  template <class Begin>
  WorkPtr checked(c10d::OpType type, const std::vector<at::Tensor>& tensors,
                  const Begin& begin);

  c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::DeviceType device_type_;
  std::atomic<int> device_index_ = -1;  // of this rank's tensors
  std::atomic<bool> is_aborted_ = false;
};

/// Throws an error of a c10d backend as a CommError with `code`, except that an
/// OutOfMemoryError is thrown again. Must be called where `error` is caught.
/// `what` says what failed, such as "ALLREDUCE failed".
[[noreturn]] void throw_backend_error(
    const c10::Error& error, const std::string& what,
    ErrorCode code = ErrorCode::kCollectiveFailed);

}  // namespace lockstep
