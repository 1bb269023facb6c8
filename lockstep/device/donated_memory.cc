#include "lockstep/device/donated_memory.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/memory_account.h"

namespace lockstep {

DonatedMemory::DonatedMemory(const Device& device, std::span<std::byte> memory,
                             std::span<const int64_t> tensor_bytes,
                             std::shared_ptr<const void> owner)
    : slice_(device.index) {
  if (!device.is_cpu()) return;
  account_of(device);  // throws if there is no account
  donate(memory, tensor_bytes, std::move(owner));
}

DonatedMemory::DonatedMemory(std::span<std::byte> memory,
                             std::span<const int64_t> tensor_bytes,
                             std::shared_ptr<const void> owner)
    : slice_(charged_slice()) {
  donate(memory, tensor_bytes, std::move(owner));
}

void DonatedMemory::donate(std::span<std::byte> memory,
                           std::span<const int64_t> tensor_bytes,
                           std::shared_ptr<const void> owner) {
  if (!has_accounting_allocator()) return;
  const size_t needed = bytes_for(tensor_bytes);
  if (needed > memory.size()) {
    throw DeviceError({.code = ErrorCode::kOutOfMemory,
                       .what = "too little memory was donated",
                       .expected = fmt::format("{} bytes", needed),
                       .got = fmt::format("{}", memory.size())});
  }
  BlockCache& cache = account_of(slice_).cache;
  donation_ = std::make_unique<Donation>();
  donation_->memory = std::move(owner);
  for (const int64_t bytes : tensor_bytes) {
    const SizeClass size_class = size_class_for_data(bytes);
    cache.donate(size_class, memory.data(), *donation_);
    memory = memory.subspan(static_cast<size_t>(size_class.capacity_bytes));
  }
}

DonatedMemory::DonatedMemory(DonatedMemory&& other) noexcept = default;

DonatedMemory::~DonatedMemory() {
  if (!donation_) return;
  account_of(slice_).cache.withdraw(std::move(donation_));
}

size_t DonatedMemory::bytes_for(std::span<const int64_t> tensor_bytes) {
  int64_t all = 0;
  for (const int64_t bytes : tensor_bytes) {
    all += size_class_for_data(bytes).capacity_bytes;
  }
  return static_cast<size_t>(all);
}

std::vector<int64_t> DonatedMemory::tensors_of_backward(
    std::vector<int64_t> gradient_bytes) {
  std::map<int, int64_t> bytes_by_class;
  for (const int64_t bytes : gradient_bytes) {
    bytes_by_class[size_class_for_data(bytes).index] = bytes;
  }
  for (const auto& [index, bytes] : bytes_by_class) {
    gradient_bytes.push_back(bytes);
  }
  return gradient_bytes;
}

}  // namespace lockstep
