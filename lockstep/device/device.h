#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

namespace lockstep {

/// A place to compute on: an accelerator, such as GPU `index`, or slice `index`
/// of the host's cores.
///
/// The host is divided into `slices` equal slices. Each slice has its own cores
/// and its own accounts of memory and busy time (see Worker, MemoryStats).
/// `slices` is 0 for accelerators. cpu:0 of 1 is the whole host.
struct Device {
  c10::DeviceType type = c10::kCPU;
  int index = 0;
  int slices = 1;

  bool is_cpu() const { return type == c10::kCPU; }
  bool is_cuda() const { return type == c10::kCUDA; }
  /// Returns "cpu:0" or "cuda:1".
  std::string name() const;

  auto operator<=>(const Device&) const = default;
};

/// Whether one device may be named twice in a list.
enum class Duplicates { kRefuse, kAllow };
/// Whether a host may be divided into more slices than it has cores. The slices
/// then share cores in turn.
enum class Oversubscription { kRefuse, kAllow };

/// Parses a list of devices.
///
///   auto                 every GPU; without one, a slice per allowed core
///   all                  the same
///   2                    the first two GPUs; without one, two slices
///   2xcpu                the host divided into two slices: cpu:0, cpu:1
///   2xcuda               the first two GPUs: cuda:0, cuda:1
///   cpu                  the whole host as one slice
///   cuda                 every GPU
///   cuda:0,cuda:1        these GPUs
///   cpu:0,cpu:1          these slices; the host has as many as are listed
///
/// Other accelerators of LibTorch are written as cuda is: 2xxpu, xpu:0,xpu:1. A
/// process has one type of accelerator, which is what auto and a number mean.
///
/// A name is an index, as in torch: cuda:2 is the third GPU. A single slice has
/// to be cpu:0, the whole host: a list names all slices, since their number is
/// the length of the list.
///
/// Throws DeviceError, naming the device and what exists, for an unknown
/// device, a mix of types, a device named twice unless `duplicates` allows it,
/// and for more slices than cores unless `oversubscription` allows them.
std::vector<Device> devices(
    std::string_view list, Duplicates duplicates = Duplicates::kRefuse,
    Oversubscription oversubscription = Oversubscription::kRefuse);

/// Returns the host, or the type of accelerator that LibTorch calls `name`:
/// "cuda", "xpu". Returns nullopt if there is no such type.
std::optional<c10::DeviceType> parse_device_type(std::string_view name);

/// Returns the cores of slice `device`. The cores that this process may use are
/// divided equally among the slices, and any remainder is not used. Throws
/// DeviceError for an accelerator and for a slice that the host does not have.
std::vector<int> cores_of(const Device& device);

/// Returns the number of intra-op threads for each shard on slices: the cores
/// of all hosts, which are assumed to be alike, divided by the shards. It is at
/// most the number of cores of the smallest of `devices`, and at least 1.
/// `local_ranks` of the job's `ranks` are on this host. Runs that have the same
/// cores and shards get the same number, whatever the number of devices and
/// ranks, because the bits of a run depend on it.
int threads_of_shard(const std::vector<Device>& devices, int64_t shards,
                     int64_t ranks, int64_t local_ranks);

/// Returns the names as text: "cpu:0, cpu:1".
std::string join_names(const std::vector<Device>& devices);

/// Returns the number of GPUs that this process can use; 0 in a build without
/// CUDA.
int cuda_device_count();

/// Returns `device` as LibTorch names it: cuda:1, or cpu for any slice. Tensors
/// that are moved there belong to no slice: lockstep::to() moves a module into
/// the memory of a slice.
c10::Device torch_device(const Device& device);

}  // namespace lockstep
