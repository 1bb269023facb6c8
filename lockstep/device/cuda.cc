#include "lockstep/device/cuda.h"

#include <algorithm>
#include <mutex>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/sparse_gpu_memory.h"

namespace lockstep::cuda {
namespace {

c10::DeviceIndex checked_index(int index) {
  if (index < 0 || index >= device_count()) {
    throw DeviceError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = fmt::format("no device cuda:{}", index),
         .fix = fmt::format("this machine has {} GPU(s)", device_count())});
  }
  return static_cast<c10::DeviceIndex>(index);
}

void check(cudaError_t result, std::string_view act, int index) {
  if (result == cudaSuccess) return;
  throw DeviceError({.code = ErrorCode::kDeviceFailed,
                     .what = fmt::format("can't {} cuda:{}", act, index),
                     .got = cudaGetErrorString(result)});
}

/// The caching allocator has no devices until CUDA is initialised.
void initialise() { at::globalContext().lazyInitDevice(c10::DeviceType::CUDA); }

}  // namespace

struct Fence {
  at::cuda::CUDAEvent event;
  c10::DeviceIndex index = 0;
};

bool is_built() { return true; }

int device_count() { return c10::cuda::device_count(); }

Properties properties(int index) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, checked_index(index)),
        "read the properties of", index);
  Properties result;
  result.memory_bytes = static_cast<int64_t>(found.totalGlobalMem);
  result.multiprocessors = found.multiProcessorCount;
  static_assert(sizeof(result.name) == sizeof(found.name));
  std::copy(std::begin(found.name), std::end(found.name), result.name);
  return result;
}

void fix_order_of_sums() {
  static std::once_flag once;
  std::call_once(once, [] { at::globalContext().setDeterministicCuDNN(true); });
}

void bind_thread(int index) {
  const c10::DeviceIndex device = checked_index(index);
  initialise();
  c10::cuda::set_device(device);
  c10::cuda::setCurrentCUDAStream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
}

void synchronize() { c10::cuda::getCurrentCUDAStream().synchronize(); }

void wait_for_all(int index) noexcept {
  c10::DeviceIndex current = 0;
  if (c10::cuda::GetDevice(&current) != cudaSuccess) return;
  if (cudaSetDevice(index) == cudaSuccess) cudaDeviceSynchronize();
  // cudaSetDevice() would take memory on a GPU that this process does not use.
  c10::cuda::MaybeSetDevice(current);
}

MemoryStats memory_stats(int index) {
  const c10::DeviceIndex device = checked_index(index);
  initialise();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  constexpr auto kTotal =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& allocated = stats.allocated_bytes[kTotal];
  const auto& reserved = stats.reserved_bytes[kTotal];
  // The allocator's peak excludes sparse memory, so its present size is added.
  const int64_t sparse = SparseGpuMemory::live_bytes(index);
  return {allocated.current + sparse, allocated.peak + sparse,
          reserved.current - allocated.current};
}

void reset_peak_memory() {
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<c10::DeviceIndex>(i);
    if (!c10::cuda::hasPrimaryContext(device)) continue;
    initialise();
    c10::cuda::CUDACachingAllocator::resetPeakStats(device);
  }
}

at::Generator current_generator() {
  const c10::DeviceIndex device = c10::cuda::current_device();
  if (!c10::cuda::hasPrimaryContext(device)) return {};
  initialise();
  return at::cuda::detail::getDefaultCUDAGenerator(device);
}

bool copy_by_kernel(const at::Tensor& destination, const at::Tensor& source) {
  const c10::Device to = destination.device();
  if (!at::cuda::get_p2p_access(to.index(), source.device().index())) {
    return false;
  }
  // The same memory as a tensor of the receiving GPU, so that an operator that
  // runs on that GPU loads from it.
  const at::Tensor remote =
      at::for_blob(source.mutable_data_ptr(), source.sizes())
          .options(source.options().device(to))
          .target_device(to)
          .make_tensor();
  at::Tensor out = destination;
  at::bitwise_or_out(out, remote, remote);
  return true;
}

std::string uuid(int index) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, checked_index(index)),
        "read the properties of", index);
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(found.uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text +=
        fmt::format("{:02x}", static_cast<unsigned char>(found.uuid.bytes[i]));
  }
  return text;
}

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

std::shared_ptr<Fence> record_fence(int index) {
  auto fence = std::make_shared<Fence>();
  fence->index = checked_index(index);
  fence->event.record(c10::cuda::getCurrentCUDAStream(fence->index));
  return fence;
}

void wait_fence(const std::shared_ptr<Fence>& fence) {
  fence->event.block(c10::cuda::getCurrentCUDAStream(fence->index));
}

}  // namespace lockstep::cuda
