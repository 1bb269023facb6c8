#include "lockstep/device/cuda/cuda.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::cuda {
namespace {

c10::DeviceIndex checked_index(int index) {
  const int count = c10::cuda::device_count();
  if (index < 0 || index >= count) {
    throw DeviceError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = fmt::format("no device cuda:{}", index),
         .fix = fmt::format("this machine has {} GPU(s)", count)});
  }
  return static_cast<c10::DeviceIndex>(index);
}

void check(cudaError_t result, std::string_view act, int index) {
  if (result == cudaSuccess) return;
  throw DeviceError({.code = ErrorCode::kDeviceFailed,
                     .what = fmt::format("can't {} cuda:{}", act, index),
                     .got = cudaGetErrorString(result)});
}

}  // namespace

bool is_built() { return true; }

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

}  // namespace lockstep::cuda
