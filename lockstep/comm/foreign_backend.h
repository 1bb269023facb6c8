#pragma once

#include <atomic>
#include <string>

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error_code.h"

namespace lockstep {

/// Throws an error of a c10d backend as a CommError with `code`, except that an
/// OutOfMemoryError is thrown again. Must be called where `error` is caught.
/// `what` says what failed, such as "ALLREDUCE failed".
[[noreturn]] void throw_backend_error(
    const c10::Error& error, const std::string& what,
    ErrorCode code = ErrorCode::kCollectiveFailed);

/// A c10d backend of others that runs its calls in order, as ProcessGroupNCCL
/// does. The tensors are on the backend's devices, and the backend determines
/// the order in which a sum adds the ranks. Calls are started in the caller's
/// thread, so that they follow the work in the caller's stream.
class ForeignBackend {
 public:
  /// `name` and `device_type` are those of the DeviceBackend that made
  /// `backend`.
  ForeignBackend(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
                 c10::DeviceType device_type);
  /// Waits for the device, because a backend may end the calls that still run
  /// when it is destroyed. If this happens because of an exception, ends them,
  /// since this rank will make no further calls.
  ~ForeignBackend();
  ForeignBackend(const ForeignBackend&) = delete;
  ForeignBackend& operator=(const ForeignBackend&) = delete;

  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  const std::string& name() const { return name_; }

  /// Remembers the device of a call's tensors.
  void note_device(c10::Device device) { device_index_ = device.index(); }
  /// Throws an error of a call as a CommError that names it: "all_reduce".
  /// Must be called where `error` is caught.
  [[noreturn]] void throw_error(const c10::Error& error,
                                const std::string& call) const;
  /// Ends the calls that this rank waits for. Whether that ends those of the
  /// other ranks depends on the backend.
  void abort() noexcept;

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
  const c10::DeviceType device_type_;
  std::atomic<int> device_index_ = -1;  // of this rank's tensors
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace lockstep
