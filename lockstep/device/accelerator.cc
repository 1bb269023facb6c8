#include "lockstep/device/accelerator.h"

#include <exception>
#include <optional>
#include <string>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/cuda/sparse_gpu_memory.h"

namespace lockstep::accelerator {
namespace {

using c10::impl::VirtualGuardImpl;

const at::AcceleratorHooksInterface& hooks(c10::DeviceType type) {
  return at::globalContext().getAcceleratorHooksInterface(type);
}

/// Returns the allocator of `type`, or nullptr if it keeps no statistics.
c10::DeviceAllocator* allocator_of(c10::DeviceType type) {
  at::globalContext().lazyInitDevice(type);
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
}

/// Throws DeviceError if this process has no `device`.
c10::Device checked(const Device& device) {
  const int count = device_count(device.type);
  if (device.index >= 0 && device.index < count) return torch_device(device);
  const std::string type = c10::DeviceTypeName(device.type, true);
  throw DeviceError(
      {.code = ErrorCode::kNoSuchDevice,
       .what = fmt::format("no device {}", device.name()),
       .fix = count == 0
                  ? "this process has no device of type " + type
                  : fmt::format("it has {0}:0 to {0}:{1}", type, count - 1)});
}

}  // namespace

std::optional<c10::DeviceType> available() {
  const auto type = at::getAccelerator();
  return type && device_count(*type) > 0 ? type : std::nullopt;
}

int device_count(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type)
             ? VirtualGuardImpl(type).deviceCount()
             : 0;
}

Properties properties(const Device& device) {
  const c10::Device known = checked(device);
  if (device.is_cuda()) {
    const auto gpu = cuda::properties(device.index);
    return {.name = gpu.name, .memory_bytes = gpu.memory_bytes};
  }
  Properties result{.name = device.name()};
  try {
    at::globalContext().lazyInitDevice(known.type());
    result.memory_bytes =
        static_cast<int64_t>(at::getDeviceAllocator(known.type())
                                 ->getMemoryInfo(known.index())
                                 .second);
  } catch (const c10::Error&) {
    // The allocator of this type does not say.
    result.memory_bytes = 0;
  }
  return result;
}

std::vector<Device> all_devices() {
  std::vector<Device> found;
  const auto type = available();
  if (!type) return found;
  for (int i = 0; i < device_count(*type); ++i) found.push_back({*type, i, 0});
  return found;
}

c10::Stream bind_thread(const Device& device) {
  const c10::Device bound = checked(device);
  at::globalContext().lazyInitDevice(bound.type());
  const VirtualGuardImpl guard(bound.type());
  guard.setDevice(bound);
  const c10::Stream stream = guard.getStreamFromGlobalPool(bound);
  guard.exchangeStream(stream);
  return stream;
}

c10::Stream current_stream(const Device& device) {
  return VirtualGuardImpl(device.type).getStream(torch_device(device));
}

std::vector<c10::Stream> current_streams(c10::DeviceType type) {
  std::vector<c10::Stream> streams;
  const VirtualGuardImpl guard(type);
  for (int i = 0; i < device_count(type); ++i) {
    streams.push_back(
        guard.getStream({type, static_cast<c10::DeviceIndex>(i)}));
  }
  return streams;
}

void record_use(const at::Tensor& tensor) {
  if (!tensor.defined() || !at::isAccelerator(tensor.device().type()) ||
      !tensor.has_storage()) {
    return;
  }
  const VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(),
                              guard.getStream(tensor.device()));
}

void synchronize(const Device& device) {
  if (device.is_cpu()) return;
  current_stream(device).synchronize();
}

void wait_for_all(const Device& device) noexcept {
  try {
    // Unlike a DeviceGuard, this does not take memory on a current device that
    // the process does not use.
    const auto index = static_cast<c10::DeviceIndex>(device.index);
    const auto current = hooks(device.type).maybeExchangeDevice(index);
    VirtualGuardImpl(device.type).synchronizeDevice(index);
    hooks(device.type).maybeExchangeDevice(current);
  } catch (const std::exception&) {
    return;
  }
}

MemoryStats memory_stats(const Device& device) {
  const c10::Device counted = checked(device);
  auto* const allocator = allocator_of(counted.type());
  if (allocator == nullptr) return {};
  const auto stats = allocator->getDeviceStats(counted.index());
  constexpr auto kTotal =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[kTotal];
  const auto& reserved = stats.reserved_bytes[kTotal];
  // The allocator's peak excludes sparse memory, so its present size is added.
  const int64_t sparse =
      device.is_cuda() ? SparseGpuMemory::live_bytes(device.index) : 0;
  return {allocated.current + sparse, allocated.peak + sparse,
          reserved.current - allocated.current};
}

void reset_peak_memory() {
  const auto type = available();
  if (!type) return;
  for (int i = 0; i < device_count(*type); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    if (!hooks(*type).hasPrimaryContext(index)) continue;
    if (auto* const allocator = allocator_of(*type)) {
      allocator->resetPeakStats(index);
    }
  }
}

Fence::Fence(const Device& device) : device_(device), event_(device.type) {
  event_.record(current_stream(device_));
}

void Fence::wait() { event_.block(current_stream(device_)); }

SideStream::SideStream(const Device& device)
    : device_(device), previous_(current_stream(device)) {
  const VirtualGuardImpl guard(device.type);
  Fence before(device);
  guard.exchangeStream(guard.getStreamFromGlobalPool(torch_device(device)));
  before.wait();
}

SideStream::~SideStream() {
  // If the device has failed, the next call says so.
  const auto attempt = [](const auto& call) {
    try {
      call();
    } catch (const std::exception&) {
    }
  };
  std::optional<Fence> after;
  attempt([&] { after.emplace(device_); });
  VirtualGuardImpl(device_.type).exchangeStream(previous_);
  attempt([&] {
    if (after) after->wait();
  });
}

}  // namespace lockstep::accelerator
