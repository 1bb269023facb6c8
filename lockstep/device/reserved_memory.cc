#include "lockstep/device/reserved_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/cuda/sparse_gpu_memory.h"
#include "lockstep/device/memory_account.h"
#include "lockstep/device/tensor_in_memory.h"

namespace lockstep {

using torch::Tensor;

namespace {

int64_t page_bytes() {
  static const auto bytes = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// The memory of a reserved tensor, and the ranges that are used.
struct Reservation {
  std::vector<ByteRange> used;
  int64_t number = 0;
  // For a tensor on the host.
  std::byte* memory = nullptr;
  int64_t bytes = 0;  // size of the mapping, in whole pages
  int64_t charged = 0;
  int account = kHostIndex;
  // For a tensor on an accelerator: with CUDA, memory for the used ranges only.
  Device device;
  std::unique_ptr<SparseGpuMemory> sparse;
  c10::DataPtr whole;
};

// The address of this function marks the storage of a reserved tensor.
void release_reservation(void* context) {
  const std::unique_ptr<Reservation> reservation(
      static_cast<Reservation*>(context));
  if (!reservation->device.is_cpu()) {
    accelerator::wait_for_all(reservation->device);
    return;
  }
  ::munmap(reservation->memory, static_cast<size_t>(reservation->bytes));
  account_of(reservation->account)
      .live_bytes.fetch_sub(reservation->charged, std::memory_order_relaxed);
}

const Reservation* reservation_of(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &release_reservation) return nullptr;
  return static_cast<const Reservation*>(data.get_context());
}

void* reserve_on_accelerator(const Tensor& like, Reservation& reservation) {
  reservation.device = {like.device().type(), like.device().index(), 0};
  if (!like.is_cuda()) {
    const c10::DeviceGuard guard(like.device());
    reservation.whole =
        c10::GetAllocator(like.device().type())->allocate(like.nbytes());
    return reservation.whole.get();
  }
  static const CudaDriver driver = CudaDriver::open();
  reservation.sparse = std::make_unique<SparseGpuMemory>(
      driver, reservation.device.index, static_cast<int64_t>(like.nbytes()),
      reservation.used);
  return reservation.sparse->data();
}

void* reserve_on_host(const Tensor& like, Reservation& reservation) {
  reservation.bytes = round_up(
      std::max<int64_t>(static_cast<int64_t>(like.nbytes()), 1), page_bytes());
  for (const ByteRange& range : reservation.used) {
    reservation.charged += round_up(range.end - range.begin, page_bytes());
  }
  const auto bytes = static_cast<size_t>(reservation.bytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError(
        {.code = ErrorCode::kOutOfMemory,
         .what = fmt::format("the system gave no addresses for {} bytes: {}",
                             bytes, std::strerror(errno)),
         .fix = "raise the limit of the address space (ulimit -v)"});
  }
  // A huge page would also take memory for unused neighbouring ranges.
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);
  reservation.memory = static_cast<std::byte*>(memory);
  reservation.account = charged_slice();
  account_of(reservation.account).charge(reservation.charged);
  return memory;
}

}  // namespace

Tensor reserved_like(const Tensor& like, const std::vector<ByteRange>& used,
                     int64_t number) {
  auto reservation = std::make_unique<Reservation>();
  reservation->used = used;
  reservation->number = number;
  void* memory = like.is_cpu() ? reserve_on_host(like, *reservation)
                               : reserve_on_accelerator(like, *reservation);
  Tensor tensor = tensor_in_memory(
      {memory, reservation.release(), &release_reservation, like.device()},
      like);
  if (!like.is_cpu()) tensor.zero_();
  return tensor;
}

std::optional<int64_t> reserved_number(const Tensor& tensor) {
  const Reservation* reservation = reservation_of(tensor);
  if (reservation == nullptr) return std::nullopt;
  return reservation->number;
}

void release_unused(const Tensor& tensor) {
  const Reservation* reservation = reservation_of(tensor);
  if (reservation == nullptr || !reservation->device.is_cpu()) return;
  // Releases the whole pages between the used ranges.
  int64_t begin = 0;
  const auto release = [&](int64_t end) {
    const int64_t first = round_up(begin, page_bytes());
    const int64_t last = end / page_bytes() * page_bytes();
    if (first >= last) return;
    ::madvise(reservation->memory + first, static_cast<size_t>(last - first),
              MADV_DONTNEED);
  };
  for (const ByteRange& range : reservation->used) {
    release(range.begin);
    begin = range.end;
  }
  release(reservation->bytes);
}

}  // namespace lockstep
