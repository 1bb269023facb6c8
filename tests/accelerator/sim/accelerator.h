#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

/// A simulated accelerator for tests, more hostile than a real one. It is
/// LibTorch's device type PrivateUse1, under the name "sim".
///
/// Each device has memory that the host can't touch (memory.h). New memory is
/// full of NaN, and freed memory is, too, and is given to the next allocation
/// at once (allocator.cc). Each stream is a thread that starts its kernels,
/// copies and frees after random delays (stream.h). A kernel is the one of the
/// CPU (operators.cc), so results have the bits of a slice.
namespace lockstep::sim {

constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 8;

struct Options {
  int devices = 4;
  /// Seed of the delays.
  uint64_t seed = 0;
  /// Longest delay before a task of a stream starts, in microseconds. One task
  /// of eight is delayed.
  int max_delay_us = 200;
  /// Memory of each device.
  int64_t memory_bytes = int64_t{2} << 30;
};

/// Registers the accelerator with LibTorch. The first call in a process counts,
/// and has to come before any operator runs in another thread.
void install(const Options& options = {});
const Options& installed();
/// Stops all streams. Every program that calls install() must call this at the
/// end of main(): after it, LibTorch destroys what kernels use. What is
/// enqueued and has not begun is dropped.
void stop_streams();

/// Faults of the devices. They apply to work that is enqueued afterwards.
struct Faults {
  /// Off: copies between devices go over the host, where the faults of copies
  /// don't reach them.
  bool peer_access = true;
  /// Changes the bytes that arrive on device `to` from `from`, in the thread
  /// that copies. Empty: intact.
  std::function<void(int from, int to, std::byte* bytes, size_t size)>
      corrupt_copy;
  /// A copy from `from` to `to` writes nothing.
  std::function<bool(int from, int to)> drop_copy;
  /// A copy from `from` to `to` never ends, until the faults change.
  std::function<bool(int from, int to)> hang_copy;
  /// The n-th allocation from now on fails, counted from 1; 0: none.
  int64_t failing_allocation = 0;
  /// The n-th kernel from now on fails. As with a GPU, this appears at the next
  /// synchronization, and each later one; 0: none.
  int64_t failing_kernel = 0;
  /// Kernels of device `slow_device` take `slow_factor` times as long.
  int slow_device = -1;
  double slow_factor = 1;
};
void set_faults(Faults faults);
/// Makes the devices work again after a kernel has failed, as a new process
/// does with a GPU.
void forget_errors();

/// Bytes of live allocations on device `index`: now, and at most since
/// reset_peaks().
struct MemoryUse {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
MemoryUse memory_use(int index);
void reset_peaks();

}  // namespace lockstep::sim
