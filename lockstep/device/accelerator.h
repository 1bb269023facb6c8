#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "lockstep/device/device.h"
#include "lockstep/device/memory.h"

// Devices with memory and streams of their own (CUDA, XPU, HPU, PrivateUse1,
// ...), through the interface that LibTorch has for all of them. cuda/cuda.h
// has the functions that only CUDA supports. Functions that take a device throw
// DeviceError if this process does not have it.
namespace lockstep::accelerator {

/// Returns the type of accelerator that this process can use, or nullopt.
std::optional<c10::DeviceType> available();
/// Returns the number of devices of `type`, which is 0 if this build of
/// LibTorch does not know the type.
int device_count(c10::DeviceType type);

/// A device as reports describe it.
struct Properties {
  std::string name;          ///< "NVIDIA H100 80GB HBM3", or as "xpu:0"
  int64_t memory_bytes = 0;  ///< 0: unknown
};
Properties properties(const Device& device);
/// Returns all devices of the accelerator that this process can use.
std::vector<Device> all_devices();

/// Makes `device` and a new stream of it current for this thread. Returns the
/// stream.
c10::Stream bind_thread(const Device& device);
/// Returns this thread's stream on `device`.
c10::Stream current_stream(const Device& device);
/// Returns this thread's stream on each device of `type`.
std::vector<c10::Stream> current_streams(c10::DeviceType type);
/// Keeps the memory of `tensor` until this thread's stream on its device has
/// done the work that it is given before the tensor is freed. Needed for a
/// tensor that was made in another stream, because its memory returns to that
/// stream. Does nothing for memory of the host.
void record_use(const at::Tensor& tensor);
/// Waits until this thread's stream on `device` is idle. Does nothing for a
/// slice, which computes at once.
void synchronize(const Device& device);
/// Waits until all streams on `device` are idle. It does not throw. The next
/// call reports an error of the device again.
void wait_for_all(const Device& device) noexcept;

/// Returns the account of LibTorch's allocator for `device`, which is empty if
/// the allocator keeps no statistics.
MemoryStats memory_stats(const Device& device);
/// Resets the peaks of all accelerators that this process uses.
void reset_peak_memory();

/// Makes another stream of `device` current for this thread while it exists.
/// The stream waits for the work that the previous one was given before, and
/// afterwards, the previous one waits for the stream.
class SideStream {
 public:
  explicit SideStream(const Device& device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

 private:
  Device device_;
  c10::Stream previous_;
};

/// A point in the work of a stream that another stream can wait for.
class Fence {
 public:
  /// Marks the end of the work that this thread's stream on `device` has been
  /// given so far.
  explicit Fence(const Device& device);
  /// Makes this thread's stream on the device wait for the point.
  void wait();

 private:
  Device device_;
  c10::Event event_;
};

}  // namespace lockstep::accelerator
