#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/queue/call_factory.h"
#include "lockstep/comm/queue/communicator.h"

namespace lockstep {

/// Runs the calls of a World over a c10d backend with its own queue:
/// ProcessGroupNCCL. Calls are started in the caller's thread, so that they
/// follow the work in the caller's CUDA stream.
class C10dCommunicator : public Communicator {
 public:
  /// `device_type` is the device type of the tensors of `backend`.
  C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                   c10::DeviceType device_type,
                   std::chrono::milliseconds timeout);

  std::string name() const override { return backend_->getBackendName(); }
  void run(const CollectiveCall& call) override;
  WorkPtr begin(CollectiveCall call) override;
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  /// Throws CommError, because ranks on GPUs share no host memory.
  SharedMemory share(size_t bytes) override;
  void abort(const std::string&) noexcept override {}

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  CallFactory calls_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep
