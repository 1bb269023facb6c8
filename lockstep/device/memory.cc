#include "lockstep/device/memory.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <new>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/out_of_resources.h"
#include "lockstep/base/round_up.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/block_cache.h"
#include "lockstep/device/memory_account.h"
#include "lockstep/device/tensor_device.h"

namespace lockstep {
namespace {

// Above LibTorch's own allocator, which has priority 0, and below a user's
// allocator of the highest priority.
constexpr uint8_t kPriority = 100;
constexpr Device kHost{c10::kCPU, kHostIndex, 1};

constinit thread_local Device charged_device = kHost;

std::string available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (double kib = 0; file >> key >> kib; file.ignore(80, '\n')) {
    if (key == "MemAvailable:") return format_bytes(kib * 1024);
  }
  return "an unknown amount";
}

[[noreturn]] void out_of_memory(size_t bytes) {
  const bool is_host = charged_device.index == kHostIndex;
  const int64_t live = account_of(charged_device.index).live_bytes;
  const std::string limits = memory_limits();
  throw DeviceError(
      {.code = ErrorCode::kOutOfMemory,
       .what = fmt::format("out of memory on {}",
                           is_host ? "the host" : charged_device.name()),
       .expected = fmt::format("{} ({} bytes) for one tensor",
                               format_bytes(static_cast<double>(bytes)), bytes),
       // The free memory of the machine is irrelevant to a process with a
       // limit.
       .got =
           fmt::format("{}, {} held by its tensors",
                       limits.empty() ? available_memory() + " free" : limits,
                       format_bytes(static_cast<double>(live))),
       .fix = limits.empty() ? "use a smaller batch or model"
                             : "raise the limit, or use a smaller batch or "
                               "model"});
}

int64_t rounded_up(int64_t bytes) {
  return round_up<int64_t>(bytes, kBlockAlignment);
}

// Donated memory is for gradients. An activation of the same size would occupy
// it until it is freed, late in the backward.
bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

BlockHeader* take_block(size_t bytes) {
  constexpr size_t kMax = size_t{1} << 46;
  if (bytes > kMax) out_of_memory(bytes);
  MemoryAccount& account = account_of(charged_device.index);
  const int64_t rounded = rounded_up(static_cast<int64_t>(bytes));
  const SizeClass size_class = size_class_for_data(rounded);
  BlockHeader* block =
      account.cache.take(size_class.index, /*may_be_donated=*/is_in_backward());
  if (block == nullptr) block = map_block(size_class);
  if (block == nullptr) {
    release_cached_memory();
    block = map_block(size_class);
  }
  if (block == nullptr) out_of_memory(bytes);
  block->magic = kLiveMagic;
  block->charged_bytes = rounded;
  block->account = static_cast<int16_t>(charged_device.index);
  block->slices = static_cast<int16_t>(charged_device.slices);
  account.charge(rounded);
  return block;
}

// This is called from destructors, which can't throw. Going on would corrupt
// more memory.
[[noreturn]] void die_of_corruption(const BlockHeader& block) {
  std::fprintf(stderr, "[device] a tensor's memory was %s\n",
               block.magic == kFreedMagic
                   ? "freed twice"
                   : "overwritten in front of its data; a neighbour was "
                     "written past its end");
  std::abort();
}

void free_data(void* data) {
  if (data == nullptr) return;
  BlockHeader* block = BlockHeader::of(data);
  if (block->magic != kLiveMagic) die_of_corruption(*block);
  c10::profiledCPUMemoryReporter().Delete(data);
  block->magic = kFreedMagic;
  MemoryAccount& account = account_of(block->account);
  account.live_bytes.fetch_sub(block->charged_bytes, std::memory_order_relaxed);
  account.cache.put(block, account.cache_limit());
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      data = take_block(bytes)->data();
      c10::profiledCPUMemoryReporter().New(data, bytes);
    }
    return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

// The allocator is never destroyed, because other objects may allocate while
// the process exits.
AccountingAllocator& allocator() {
  alignas(AccountingAllocator) static std::byte
      storage[sizeof(AccountingAllocator)];
  static auto* const instance = new (storage) AccountingAllocator;
  return *instance;
}

}  // namespace

int charged_slice() { return charged_device.index; }

void install_accounting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator(), kPriority); });
}

bool has_accounting_allocator() {
  return c10::GetCPUAllocator() == &allocator();
}

MemoryScope::MemoryScope(const Device& device) : previous_(charged_device) {
  if (!device.is_cpu()) return;
  account_of(device);  // throws if there is no account
  charged_device = device;
}

MemoryScope::~MemoryScope() { charged_device = previous_; }

MemoryStats memory_stats(const Device& device) {
  if (!device.is_cpu()) return accelerator::memory_stats(device);
  return account_of(device).stats();
}

MemoryStats host_memory_stats() { return account_of(kHostIndex).stats(); }

void reset_peak_memory() {
  for (int slice = kHostIndex; slice < kMaxSlices; ++slice) {
    MemoryAccount& account = account_of(slice);
    account.peak_bytes = account.live_bytes.load();
  }
  accelerator::reset_peak_memory();
}

void release_cached_memory() {
  for (int slice = kHostIndex; slice < kMaxSlices; ++slice) {
    account_of(slice).cache.release_all();
  }
}

std::optional<Device> DeviceOf::operator()(const at::Tensor& tensor) const {
  if (!tensor.defined()) return std::nullopt;
  if (at::isAccelerator(tensor.device().type())) {
    return Device{tensor.device().type(), tensor.device().index(), 0};
  }
  if (!tensor.is_cpu() || !tensor.has_storage()) return std::nullopt;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  // Only memory with our deleter has a header in front of the data.
  if (memory.get_deleter() != &free_data || memory.get_context() == nullptr) {
    return std::nullopt;
  }
  const BlockHeader* block = BlockHeader::of(memory.get_context());
  if (block->account == kHostIndex) return std::nullopt;
  return Device{c10::kCPU, block->account, block->slices};
}

}  // namespace lockstep
