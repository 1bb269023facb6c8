#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

/// A kind of c10d backend that carries tensors on devices of one type, such as
/// NCCL for GPUs.
struct DeviceBackend {
  using Make = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      std::chrono::milliseconds timeout)>;

  std::string name;
  c10::DeviceType device_type = c10::kCPU;
  Make make;
};

/// Adds a backend. Throws InvalidArgument if its name or its device type is
/// taken.
void add_device_backend(DeviceBackend backend);
std::optional<DeviceBackend> device_backend(const std::string& name);
std::optional<DeviceBackend> device_backend(c10::DeviceType device_type);
/// Returns the names that ProcessGroupOptions::backend() may have: "auto",
/// "shm", "tcp", "nccl" and those of other device backends.
std::vector<std::string> backend_names();

/// Makes c10d's ProcessGroupNCCL. Throws CommError if that fails, or in a build
/// without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout);

}  // namespace lockstep
